"""Write the results of random operator tests as a page: tests/hostile/EAGER.md."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from operator_verdicts import RECIPES
from other_roundings import TOLERANCES

MEANS = {
    "none": "eager has no answer, or another one each time",
    "same bits": "equal by all recipes, to the bit, NaN for NaN",
    "equal": "equal within the tolerance",
    "undecided": "eager itself is as far from it with other roundings",
    "refused": "a `KvcError` says what is not supported",
    "wrong": "anything else",
    "error": "an error that is no `KvcError`",
    "ends the process": "a crash",
    "runs for long": "40 s of a processor for each",
}

HEAD = """\
# Random operators against eager

Written by `python tests/hostile/against_eager.py FOLDER --page FILE`, with torch
{torch}; do not edit. How programs are made: [README.md](README.md#random-operators).

Recipes: {recipes}. Tolerances, relative and absolute: {tolerances}; integers are equal.
"""


class Record(Protocol):
    """Results of all random programs of one length, from `against_eager.py`."""

    length: int
    seed: int
    kinds: Counter[str]
    refused: list[list[object]]
    findings: list[list[object]]
    seconds: float


def page(records: Sequence[Record]) -> str:
    """Return the results as Markdown, with a section for each length of programs."""
    tolerances = "; ".join(
        f"{str(dtype).removeprefix('torch.')} {relative:g}, {absolute:g}"
        for dtype, (relative, absolute) in TOLERANCES.items()
    )
    recipes = ", ".join(f"`{recipe}`" for recipe in RECIPES)
    head = HEAD.format(torch=torch.__version__, recipes=recipes, tolerances=tolerances)
    lines = [head.replace("+cpu", "")]
    for record in records:
        lines += _of_length(record)
    return "\n".join(lines)


def _of_length(record: Record) -> list[str]:
    operators = f"{record.length} operator" + "s" * (record.length > 1)
    tried, hours = sum(record.kinds.values()), record.seconds / 3600
    rate = round(tried / hours, -2) if hours else 0
    findings = [f"- {' | '.join(map(str, one))}" for one in record.findings]
    kinds = sorted(record.kinds, key=list(MEANS).index)
    rows = [f"| {kind} | {MEANS[kind]} | {record.kinds[kind]:,} |" for kind in kinds]
    return [
        f"## Programs of {operators}",
        "",
        f"{tried:,} programs, seed {record.seed}, in {hours:.2f} hours of a processor:",
        f"{rate:,.0f} an hour.",
        "",
        "| verdict | meaning | programs |",
        "| --- | --- | ---: |",
        *rows,
        "",
        "### Findings",
        "",
        *(findings or ["None."]),
        "",
        "### Refused most often",
        "",
        *_refusals(record.refused),
        "",
    ]


def _refusals(refused: Iterable[Sequence[object]]) -> Iterator[str]:
    counts = Counter(str(why).partition(" in forward")[0][:150] for *_, why in refused)
    for why, count in counts.most_common(12):
        yield f"- {count:,}: {why}"
