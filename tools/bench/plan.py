"""What `kvc bench` measures: the tests, and the input and output of a process.

A process that measures receives a `Plan` as JSON, and prints `Figures` as JSON. Tests
are named as llama-bench names its own: `pp128` reads a prompt of 128 tokens, and `tg32
@ d1024` makes 32 tokens after 1,024. The default tests of `kvc bench` and `kvc profile`
are those that fit in a session of every bundle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvc.runtime.sessions.sizes import position_limit
from kvc.schema.container import BundleFile
from kvc.tools.options import Loading


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """Tokens to run on a session that holds `depth` of them already.

    Attributes:
        prompt: number of tokens of a prompt, 0 for a test that makes tokens.
        steps: number of tokens made one by one, 0 for a test that reads a prompt.
        depth: number of tokens in each row before the test.
    """

    prompt: int
    steps: int
    depth: int

    @property
    def name(self) -> str:
        """Return the name of the test in the form of llama-bench."""
        name = f"pp{self.prompt}" if self.prompt else f"tg{self.steps}"
        return f"{name} @ d{self.depth}" if self.depth else name

    @property
    def tokens(self) -> int:
        """Return how many tokens of a row are timed."""
        return self.prompt or self.steps


def plan_tests(
    prompts: Sequence[int], steps: Sequence[int], depths: Sequence[int]
) -> tuple[SpeedTest, ...]:
    """Return a test of each prompt and number of steps at each depth, no test twice."""
    found = [
        test
        for depth in depths
        for test in (
            *(SpeedTest(prompt, 0, depth) for prompt in prompts if prompt),
            *(SpeedTest(0, count, depth) for count in steps if count),
        )
    ]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process measures.

    Attributes:
        bundle: path of the bundle.
        tests: tests in the order in which they run.
        rows: number of rows of the session; every row takes the same number of tokens.
        began: `time.monotonic()` when the process was started.
        loading: how to load the bundle.
    """

    bundle: str
    tests: tuple[SpeedTest, ...]
    rows: int
    began: float
    loading: Loading


def plan_of(fields: dict[str, object]) -> Plan:
    """Return the plan with the given fields, which come from JSON."""
    tests, loading = fields["tests"], fields["loading"]
    assert isinstance(tests, list)
    assert isinstance(loading, dict)
    found = fields | {
        "tests": tuple(SpeedTest(**test) for test in tests),
        "loading": Loading(**loading),
    }
    return Plan(**found)  # type: ignore[arg-type]  # as `asdict` made them


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process, in bytes.

    Attributes:
        anonymous: bytes of the process's own pages.
        file: bytes of pages of files, which processes share and the system can drop.
        peak: the most bytes of both kinds that were ever resident.
    """

    anonymous: int
    file: int
    peak: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one process measured.

    Attributes:
        recipe: name of the bundle's recipe.
        nbytes: bytes of the bundle and its data files.
        threads: number of threads that computed.
        load_s: seconds of the load call.
        first_token_s: seconds from the start of the process to the logits of the first
            token: starting Python, importing, loading, and running one token.
        seconds: seconds of each test.
        memory: resident memory at the end, None if the system does not report it.
    """

    recipe: str
    nbytes: int
    threads: int
    load_s: float
    first_token_s: float
    seconds: tuple[float, ...]
    memory: Memory | None


def figures_of(fields: dict[str, object]) -> Figures:
    """Return figures from their fields, as a process printed them."""
    seconds, memory = fields["seconds"], fields["memory"]
    assert isinstance(seconds, list)
    found = fields | {
        "seconds": tuple(seconds),
        "memory": Memory(**memory) if isinstance(memory, dict) else None,
    }
    return Figures(**found)  # type: ignore[arg-type]  # as the process wrote them


def most_tokens(bundles: Sequence[str], depth: int) -> int | None:
    """Return how many tokens fit after `depth` tokens in a session of every bundle.

    The result is at least 1, and None if nothing limits the number.

    Raises:
        KvcError: a bundle cannot be read.
    """
    limits = [limit for path in bundles if (limit := _limit(path)) is not None]
    return max(1, min(limits) - depth) if limits else None


def fitting(counts: Sequence[int], most: int | None) -> list[int]:
    """Return the counts of tokens up to `most`, or `most` if all counts are larger."""
    if most is None:
        return list(counts)
    return [count for count in counts if count <= most] or [most]


def _limit(path: str) -> int | None:
    """Return the most tokens that fit in a session, None if there is no limit."""
    with BundleFile.open(path) as file:
        program = file.program
    if program.position is None:
        return None
    return position_limit(
        program, {each.name: each.greatest for each in program.symbols}
    )
