# ruff: noqa: E501  texts read best unbroken
"""What came of torch's samples of operators, kept as rows and written as a page.

In: rows of `operators.py`, one for each operator and way. Out: compiler/OPERATORS.md.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from operator_samples import Way

PAGE = Path(__file__).parents[2] / "compiler" / "OPERATORS.md"
KINDS = ("equal", "left", "refused", "wrong", "error")  # the worst last
COLUMNS = ("equal", "refused", "wrong", "error")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of an operator's samples in one way.

    Attributes:
        name: of the operator, with that of its variant.
        found: how many samples came out how, by kind.
        reason: why the last one that is not equal is not.
    """

    name: str
    way: Way
    found: Mapping[str, int]
    reason: str = ""

    @property
    def worst(self) -> str:
        """Return the worst kind of outcome, "" where there is none."""
        return next((kind for kind in reversed(KINDS) if self.found.get(kind)), "")


def kept(path: Path | None) -> list[Row]:
    """Return the rows of a file, none where there is no file."""
    if path is None or not path.exists():
        return []
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def keep(row: Row, path: Path | None) -> None:
    """Add a row to a file."""
    if path is not None:
        with path.open("a") as out:
            out.write(json.dumps(asdict(row)) + "\n")


HEAD = """\
# Torch's own samples of operators

Written by `python tests/benchmarks/operators.py --page` with torch {torch}; do not edit.

torch tests its operators with samples, `op_db`. The first sample of each operator and of
float32 and int64 is made a module, compiled by `fp32`, saved, loaded, run, and compared
with eager: as it is (*plain*); *in place*, on a buffer, called twice; with a *dynamic*
first size, at two sizes; *strided*, with tensors that are not contiguous; and *in a branch*,
the first of two of `torch.cond`, where it writes too if it has such a form. Left out are samples that eager refuses, complex and sparse ones, those without a tensor, those that have
no such way, and operators whose results have no values. *Operators* are those with samples,
*all equal* those of which none is anything else.

| way | samples | equal | refused | wrong | other errors | operators | all equal |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def page(rows: Iterable[Row]) -> str:
    """Return the page of all rows."""
    by_way = defaultdict[Way, list[Row]](list)
    for row in rows:
        if row.worst:
            by_way[row.way].append(row)
    lines = [_counts(way, some) for way, some in by_way.items()]
    parts = [HEAD.format(torch=torch.__version__.split("+")[0]), *lines]
    parts += ["\n## What is refused, and why\n", *map(_refusals, by_way.items())]
    return "".join(parts)


def _counts(way: Way, rows: list[Row]) -> str:
    total = Counter[str]()
    for row in rows:
        total.update(row.found)
    equal = sum(row.worst == "equal" for row in rows)
    cells = [total.total(), *(total[kind] for kind in COLUMNS), len(rows), equal]
    return f"| {way} | {' | '.join(map(str, cells))} |\n"


def _refusals(given: tuple[Way, list[Row]]) -> str:
    """Return the operators of a way that are not all equal, by their reasons."""
    way, rows = given
    by_reason = defaultdict[str, list[str]](list)
    for row in rows:
        if row.worst != "equal":
            by_reason[short(row.reason)].append(row.name)
    text = f"\n### {way.capitalize()}\n\n" if by_reason else ""
    for reason, names in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        text += f"- {reason} ({len(names)}): {', '.join(f'`{n}`' for n in names)}\n"
    return text


_MISSING = re.compile(r"no kernel for \d+ op\(s\):\s+\S+ \((.*?)\) in forward")
_PLACE = re.compile(r"^cannot capture method forward( at \S+)?: ")


def short(reason: str) -> str:
    """Return a refusal without the names of operators and places in it."""
    if found := _MISSING.match(reason):
        return found[1]
    words = " ".join(_PLACE.sub("", reason).split())
    return words if len(words) <= 200 else words[:200] + "..."
