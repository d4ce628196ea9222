"""Lay out what `kvc bench` measured, as tables and as reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvc.schema.text import columns, escape, size
from kvc.tools.bench.plan import Figures, Memory
from kvc.tools.bench.rounds import Measured, Spread


def tables(found: Sequence[Measured]) -> list[str]:
    """Return speeds, and what starting and memory cost; medians (least to most)."""
    lines = columns([_speed_titles(found), *_speed_rows(found)], "<<>><><")
    costs = [row for one in found if one.figures for row in _cost_rows(one)]
    titles = ("bundle", "load", "first token", "memory", "+ pages of files", "peak")
    return [*lines, "", *columns([titles, *costs], "<>>>>>")]


def _speed_titles(found: Sequence[Measured]) -> tuple[str, ...]:
    titles = ("model", "recipe", "size", "threads", "test", "t/s", "")
    return (*titles, "of the first") if len(found) > 1 else titles


def _speed_rows(found: Sequence[Measured]) -> list[tuple[str, ...]]:
    rows = []
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
    return rows


def _rate(tokens: float) -> str:
    """Return tokens a second to three digits."""
    return f"{tokens:.{0 if tokens >= 100 else 1 if tokens >= 10 else 2}f}"


def _cost_rows(one: Measured) -> list[tuple[str, ...]]:
    load, first = _spread(one, _load), _spread(one, _first_token)
    memory = one.figures[-1].memory
    sizes = ("-", "-", "-")
    if memory is not None:
        sizes = (size(memory.anonymous), size(memory.file), size(memory.peak))
    return [
        (
            escape(one.path),
            f"{1000 * load.median:.0f} ms",
            f"{first.median:.2f} s",
            *sizes,
        )
    ]


def _load(figures: Figures) -> float:
    return figures.load_s


def _first_token(figures: Figures) -> float:
    return figures.first_token_s


def _spread(one: Measured, of: Callable[[Figures], float]) -> Spread:
    return Spread.over([of(figures) for figures in one.figures])


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """What a test gave.

    Attributes:
        test: its name, as llama-bench has it.
        prompt: tokens of the prompt, 0 for a test that makes tokens.
        steps: tokens made one by one, 0 for a test that reads a prompt.
        depth: tokens in each row before.
        seconds: of each round.
        tokens_per_second: of all rows together.
        ratio_to_first: how many times as fast as the first bundle, in each round.
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
    """What the rounds gave for a bundle, or for a peer's file.

    Attributes:
        path: of the bundle or file.
        recipe: of the bundle; the peer's name.
        nbytes: of the bundle and its data files, or of the file.
        threads: computed with.
        rows: of the session.
        load_s: seconds of the load call; null of a peer.
        first_token_s: seconds from the start of the process to the logits of one token;
            null of a peer.
        memory: at the end of each round, null where the system does not tell; empty of
            a peer.
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
    """Return all figures: of each round, and medians with the least and the most."""
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
    return BenchReport(
        path=one.path,
        recipe=one.recipe,
        nbytes=one.nbytes,
        threads=one.threads,
        rows=one.rows,
        tests=tests,
        load_s=_spread(one, _load) if one.figures else None,
        first_token_s=_spread(one, _first_token) if one.figures else None,
        memory=tuple(figures.memory for figures in one.figures),
    )
