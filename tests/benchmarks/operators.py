"""How much of torch's own samples of operators compiles, and is equal to eager.

`python tests/benchmarks/operators.py [NAMES] [--ways plain] [--samples 1] [--part 0
--parts 1]`. Needs `pip install expecttest`. The samples are `op_db`, which torch's own
tests use: of each operator, float32 and int64, each sample is a module that is compiled
by `fp32` or `--recipe`, saved, loaded and run, in each of the ways of
`tests/support/operator_samples.py`. Samples that eager refuses are left out, and so are
complex and sparse ones, those that have no tensor, and operators whose results have no
values. Prints what is not equal, and what it all comes to: equal, left to PyTorch by
the recipe's backend, refused with a `KvcError`, other errors, wrong. `--results` keeps
what came of each operator and way, one line of JSON each, and what has one there is not
tried again; `--page` writes them as compiler/OPERATORS.md. `--executorch` tries those
operators alone that ExecuTorch's kernels run, and says how many of these have no sample
that is refused. The exit code tells whether none was wrong or failed otherwise.

With `--without-torch` bundles run in a process that cannot import torch, if nothing in
them is left to PyTorch. `--dtypes` takes samples of these dtypes instead.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from executorch_operators import names_in
from module_outcomes import Outcome
from operator_samples import (
    DTYPES,
    WAYS,
    Way,
    name_of,
    operators,
    outcome,
    trials_of,
)
from operators_page import KINDS, PAGE, Row, keep, kept, page
from torch.testing._internal.opinfo.core import OpInfo
from without_torch import WithoutTorch


@dataclass(frozen=True, slots=True)
class Trying:
    """How operators are tried.

    Attributes:
        path: where bundles are saved.
        most: how many samples of each dtype.
        dtypes: of the samples.
        recipe: by which they are compiled.
        process: the process that runs them, None for this one.
    """

    path: Path
    most: int
    dtypes: Sequence[torch.dtype]
    recipe: str
    process: WithoutTorch | None

    def operator(self, op: OpInfo, way: Way) -> Row:
        """Try an operator in one way; print what is not equal, and why."""
        found, why = Counter[str](), dict[Outcome, None]()
        for trial in trials_of(op, way, self.most, self.dtypes):
            result = outcome(trial, self.path, self.recipe, self.process)
            found[result.kind] += 1
            if result.kind not in ("", "equal"):
                why[result] = None
        del found[""]
        for each in why:
            text = f"{name_of(op)}, {way}: {each.kind}: {each.reason[:300]}\n"
            sys.stdout.write(text)
            sys.stdout.flush()
        return Row(name_of(op), way, dict(found), [*why][-1].reason if why else "")


def try_all(
    wanted: Iterable[OpInfo], ways: Iterable[Way], trying: Trying, results: Path | None
) -> list[Row]:
    """Try what has no row yet, and return the rows of all that is kept or tried."""
    rows = {(row.name, row.way): row for row in kept(results)}
    for op, way in product(wanted, ways):
        if (name_of(op), way) not in rows:
            rows[name_of(op), way] = trying.operator(op, way)
            keep(rows[name_of(op), way], results)
    return list(rows.values())


def worst_of(rows: Iterable[Row]) -> dict[str, str]:
    """Return the worst that came of each operator that has samples."""
    found = dict[str, str]()
    for row in rows:
        if row.worst:
            both = (row.worst, found.get(row.name, KINDS[0]))
            found[row.name] = max(both, key=KINDS.index)
    return found


def _in_order(rows: Iterable[Row], known: list[OpInfo]) -> list[Row]:
    """Return the rows of known operators, by ways, in torch's order."""
    order = {name_of(op): i for i, op in enumerate(known)}
    some = [row for row in rows if row.name in order]
    return sorted(some, key=lambda row: (WAYS.index(row.way), order[row.name]))


def _report_theirs(theirs: dict[str, tuple[str, ...]], refused: set[str]) -> None:
    """Print how many of ExecuTorch's operators are equal in all that was tried."""
    untried = sorted(name for name, samples in theirs.items() if not samples)
    good = [n for n, some in theirs.items() if some and not refused.intersection(some)]
    rest = sorted(theirs.keys() - {*good, *untried})
    share = len(good) / len(theirs)
    sys.stdout.write(f"of ExecuTorch's {len(theirs)}: {len(good)} equal, {share:.0%}\n")
    sys.stdout.write(f"not equal: {' '.join(rest)}\nno sample: {' '.join(untried)}\n")


def _short(dtype: torch.dtype) -> str:
    """Return the name of a dtype without that of torch."""
    return str(dtype).removeprefix("torch.")


def main() -> int:
    """Try the operators, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="of operators; all where none is given"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["plain"])
    parser.add_argument("--samples", type=int, default=1, help="of each dtype")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--executorch", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--recipe", default="fp32", help="[default: fp32]")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--dtypes", nargs="+", default=[*map(_short, DTYPES)])
    options = parser.parse_args()
    if options.page and options.recipe != "fp32":
        parser.error("the page is about the recipe fp32")
    warnings.filterwarnings("ignore")
    known = operators()
    theirs = names_in(frozenset(op.name for op in known)) if options.executorch else {}
    names = {*options.names, *(name for some in theirs.values() for name in some)}
    wanted = [op for op in known if not names or op.name in names]
    mine = wanted[options.part :: options.parts]
    dtypes = [getattr(torch, name) for name in options.dtypes]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = stack.enter_context(WithoutTorch()) if options.without_torch else None
        path = folder / "sample.kvc"
        trying = Trying(path, options.samples, dtypes, options.recipe, process)
        rows = try_all(mine, options.ways, trying, options.results)
    total = sum((Counter(row.found) for row in rows), Counter[str]())
    whole = worst_of(rows)
    bad = {name for name, kind in whole.items() if kind != "equal"}
    refused = {op.name for op in known if name_of(op) in bad}
    if theirs:
        _report_theirs(theirs, refused)
    worst = Counter(whole.values())
    for title, counts in (("samples", total), ("operators, by their worst", worst)):
        words = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        sys.stdout.write(f"{title}: {words}\n")
    if options.page:
        PAGE.write_text(page(_in_order(rows, known)))
    return 1 if total["wrong"] + total["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
