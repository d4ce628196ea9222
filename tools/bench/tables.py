"""Lay out what `kvc bench` measured, as tables and as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from kvc.tools.bench.plan import Figures
from kvc.tools.bench.rounds import Measured, Spread
from kvc.tools.text import columns, escape, size


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


def as_json(found: Sequence[Measured]) -> list[dict[str, object]]:
    """Return all figures: of each round, and medians with the least and the most."""
    return [_fields(one, found[0]) for one in found]


def _fields(one: Measured, first: Measured) -> dict[str, object]:
    tests = [
        {
            "test": test.name,
            **asdict(test),
            "seconds": [seconds[number] for seconds in one.rounds],
            "tokens_per_second": asdict(one.speed(number)),
            "ratio_to_first": asdict(one.ratio(number, first)),
        }
        for number, test in enumerate(one.tests)
    ]
    fields: dict[str, object] = {
        "path": one.path,
        "recipe": one.recipe,
        "nbytes": one.nbytes,
        "threads": one.threads,
        "rows": one.rows,
        "tests": tests,
    }
    if one.figures:
        memory = [f.memory and asdict(f.memory) for f in one.figures]
        fields |= {
            "load_s": asdict(_spread(one, _load)),
            "first_token_s": asdict(_spread(one, _first_token)),
            "memory": memory,
        }
    return fields
