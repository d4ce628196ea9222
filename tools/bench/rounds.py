"""Run the rounds of `kvc bench`: each bundle in turn, each run in a new process.

In: bundles, tests, how to load. Out: the figures of each round, and the median, minimum
and maximum over the rounds, as tables and as reports. Bundles take turns so that a
machine that becomes slower affects all bundles alike. The ratio of two bundles is the
median of the ratios in each round.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import click

from kvc.schema.text import columns, escape, size
from kvc.tools.bench.peers import Peer
from kvc.tools.bench.plan import Figures, Memory, Plan, SpeedTest, figures_of
from kvc.tools.options import Loading

Progress = Callable[[str, int, int], None]  # what runs, processes done, all processes


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the least and the most of a figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def over(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of one or more figures."""
        return cls(statistics.median(figures), min(figures), max(figures))


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a bundle, or of a peer's file, in all rounds.

    Attributes:
        path: path of the bundle or file.
        recipe: name of the bundle's recipe, or of the peer.
        nbytes: bytes of the bundle and its data files, or of the peer's file.
        threads: number of threads that computed.
        rows: number of rows of the session.
        tests: tests that were run.
        rounds: for each round, the seconds of each test.
        figures: for each round, the figures of the bundle's process; empty for a peer.
    """

    path: str
    recipe: str
    nbytes: int
    threads: int
    rows: int
    tests: tuple[SpeedTest, ...]
    rounds: tuple[tuple[float, ...], ...]
    figures: tuple[Figures, ...] = ()

    def speed(self, test: int) -> Spread:
        """Return the tokens per second of a test, summed over the rows."""
        return Spread.over(self._speeds(test))

    def ratio(self, test: int, first: "Measured") -> Spread:
        """Return the ratios of a test's speed to that of `first`, over the rounds."""
        pairs = zip(self._speeds(test), first._speeds(test), strict=True)
        return Spread.over([own / other for own, other in pairs])

    def _speeds(self, test: int) -> list[float]:
        tokens = self.tests[test].tokens * self.rows
        return [tokens / seconds[test] for seconds in self.rounds]


def run_rounds(
    bundles: Sequence[str],
    tests: tuple[SpeedTest, ...],
    rows: int,
    rounds: int,
    loading: Loading,
    peers: Sequence[Peer] = (),
    progress: Progress | None = None,
) -> list[Measured]:
    """Return the measurements of each bundle, followed by those of each peer's file.

    Args:
        bundles: one or more paths of bundles.
        tests: tests to run.
        rows: number of rows of each session.
        rounds: number of rounds.
        loading: how to load bundles.
        peers: files of other runtimes, which take turns with the bundles.
        progress: function that is called before each process, with what runs.

    Raises:
        ClickException: a process fails; the message has the reason.
    """
    report = progress or (lambda what, done, total: None)
    in_all, done = rounds * (len(bundles) + len(peers)), 0
    figures: list[list[Figures]] = [[] for _ in bundles]
    others: list[list[tuple[float, ...]]] = [[] for _ in peers]
    for _ in range(rounds):
        for bundle, kept in zip(bundles, figures, strict=True):
            report(bundle, done, in_all)
            kept.append(_measure(bundle, tests, rows, loading))
            done += 1
        for peer, times in zip(peers, others, strict=True):
            report(peer.path, done, in_all)
            times.append(peer.seconds(tests, figures[0][0].threads))
            done += 1
    threads = figures[0][0].threads
    return [
        *(
            Measured(
                bundle,
                kept[0].recipe,
                kept[0].nbytes,
                kept[0].threads,
                rows,
                tests,
                tuple(one.seconds for one in kept),
                tuple(kept),
            )
            for bundle, kept in zip(bundles, figures, strict=True)
        ),
        *(
            Measured(peer.path, peer.name, peer.nbytes, threads, 1, tests, tuple(times))
            for peer, times in zip(peers, others, strict=True)
        ),
    ]


def _measure(
    bundle: str, tests: tuple[SpeedTest, ...], rows: int, loading: Loading
) -> Figures:
    """Return the figures of a bundle, measured by a new process."""
    plan = Plan(bundle, tests, rows, time.monotonic(), loading)
    # -P: a folder that somebody runs kvc in may have a numpy.py.
    command = [
        sys.executable,
        "-P",
        "-m",
        "kvc.tools.bench.measuring",
        json.dumps(asdict(plan)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said, name = done.stderr.strip(), escape(bundle)  # which may name it
        whole = said if name in said else f"{name}: {said or 'no figures came'}"
        raise click.ClickException(whole)
    if done.stderr:
        click.echo(done.stderr, err=True, nl=False)
    return figures_of(json.loads(done.stdout))


def tables(found: Sequence[Measured]) -> list[str]:
    """Return tables of speed, start-up time and memory: median (minimum to maximum)."""
    titles = ("model", "recipe", "size", "threads", "test", "t/s", "")
    rows: list[tuple[str, ...]] = [(*titles, *["of the first"] * (len(found) > 1))]
    for number, test in enumerate(found[0].tests):
        for one in found:
            speed = one.speed(number)
            rows.append(
                (
                    escape(one.path),
                    escape(one.recipe),
                    size(one.nbytes),
                    str(one.threads),
                    test.name if one.rows == 1 else f"{test.name} x {one.rows}",
                    _rate(speed.median),
                    f"({_rate(speed.least)} to {_rate(speed.most)})",
                    *(
                        [f"{one.ratio(number, found[0]).median:.2f}"]
                        if len(found) > 1
                        else []
                    ),
                )
            )
    lines = columns(rows, "<<>><><")
    costs = [_cost_row(one) for one in found if one.figures]
    heads = ("bundle", "load", "first token", "memory", "+ pages of files", "peak")
    return [*lines, "", *columns([heads, *costs], "<>>>>>")]


def _rate(tokens: float) -> str:
    """Return tokens per second, rounded to three digits."""
    return f"{tokens:.{0 if tokens >= 100 else 1 if tokens >= 10 else 2}f}"


def _cost_row(one: Measured) -> tuple[str, ...]:
    load = Spread.over([figures.load_s for figures in one.figures])
    first = Spread.over([figures.first_token_s for figures in one.figures])
    memory = one.figures[-1].memory
    sizes = ("-", "-", "-")
    if memory is not None:
        sizes = (size(memory.anonymous), size(memory.file), size(memory.peak))
    return (
        escape(one.path),
        f"{1000 * load.median:.0f} ms",
        f"{first.median:.2f} s",
        *sizes,
    )


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """The speed of a test, measured in all rounds.

    Attributes:
        test: name of the test in the form of llama-bench.
        prompt: number of tokens of the prompt, 0 for a test that makes tokens.
        steps: number of tokens made one by one, 0 for a test that reads a prompt.
        depth: number of tokens in each row before the test.
        seconds: seconds of the test in each round.
        tokens_per_second: tokens per second, summed over the rows.
        ratio_to_first: ratio of the speed to the first bundle's speed, over the rounds.
    """

    test: str
    prompt: int
    steps: int
    depth: int
    seconds: tuple[float, ...]
    tokens_per_second: Spread
    ratio_to_first: Spread


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The measurements of a bundle, or of a peer's file, in all rounds.

    Attributes:
        path: path of the bundle or file.
        recipe: name of the bundle's recipe, or of the peer.
        nbytes: bytes of the bundle and its data files, or of the peer's file.
        threads: number of threads that computed.
        rows: number of rows of the session.
        load_s: seconds of the load call; null for a peer.
        first_token_s: seconds from the start of the process to the logits of one token;
            null for a peer.
        memory: resident memory at the end of each round, null if the system does not
            report it; empty for a peer.
    """

    path: str
    recipe: str
    nbytes: int
    threads: int
    rows: int
    tests: tuple[SpeedReport, ...]
    load_s: Spread | None
    first_token_s: Spread | None
    memory: tuple[Memory | None, ...]


def describe_bench(found: Sequence[Measured]) -> list[BenchReport]:
    """Return all figures: those of each round, and medians with minimum and maximum."""
    return [_report(one, found[0]) for one in found]


def _report(one: Measured, first: Measured) -> BenchReport:
    tests = tuple(
        SpeedReport(
            test=test.name,
            prompt=test.prompt,
            steps=test.steps,
            depth=test.depth,
            seconds=tuple(seconds[number] for seconds in one.rounds),
            tokens_per_second=one.speed(number),
            ratio_to_first=one.ratio(number, first),
        )
        for number, test in enumerate(one.tests)
    )
    loads = [figures.load_s for figures in one.figures]
    firsts = [figures.first_token_s for figures in one.figures]
    return BenchReport(
        path=one.path,
        recipe=one.recipe,
        nbytes=one.nbytes,
        threads=one.threads,
        rows=one.rows,
        tests=tests,
        load_s=Spread.over(loads) if loads else None,
        first_token_s=Spread.over(firsts) if firsts else None,
        memory=tuple(figures.memory for figures in one.figures),
    )
