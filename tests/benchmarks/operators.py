"""How much of torch's own samples of operators compiles, and is equal to eager.

`python tests/benchmarks/operators.py [NAMES] [--ways plain] [--samples 1] [--part 0
--parts 1]`. Needs `pip install expecttest`. The samples are `op_db`, which torch's own
tests use: of each operator, float32 and int64, each sample is a module that is compiled
by `fp32`, saved, loaded and run, in each of the ways of
`tests/support/operator_samples.py`. Samples that eager refuses are left out, and so are
complex and sparse ones, those that have no tensor, and operators whose results have no
values. Prints a line for each operator that is not all equal, and what it all comes to:
equal, refused with a `KvcError`, other errors, wrong. `--executorch` tries those
operators alone that ExecuTorch's kernels run, and says how many of these have no sample
that is refused. The exit code tells whether none was wrong or failed otherwise.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from executorch_operators import names_in
from operator_samples import WAYS, Way, operators, outcome, trials_of
from torch.testing._internal.opinfo.core import OpInfo


def try_operator(op: OpInfo, way: Way, most: int, path: Path) -> Counter[str]:
    """Try an operator in one way; print why it is not equal, return the outcomes."""
    found, why = Counter[str](), ""
    for trial in trials_of(op, way, most):
        result = outcome(trial, path)
        found[result.kind] += 1
        why = result.reason or why
    del found[""]
    if found.total() != found["equal"]:
        name = op.name + (op.variant_test_name and f".{op.variant_test_name}")
        sys.stdout.write(f"{name}, {way}: {dict(found)} {why[:200]}\n")
        sys.stdout.flush()
    return found


def worst_of(found: Counter[str]) -> str:
    """Return the worst outcome, "" where there is none."""
    kinds = ("wrong", "error", "refused", "equal")
    return next((kind for kind in kinds if found[kind]), "")


def _report_theirs(theirs: dict[str, tuple[str, ...]], refused: set[str]) -> None:
    """Print how many of ExecuTorch's operators are equal in all that was tried."""
    untried = sorted(name for name, samples in theirs.items() if not samples)
    good = [n for n, some in theirs.items() if some and not refused.intersection(some)]
    rest = sorted(theirs.keys() - {*good, *untried})
    share = len(good) / len(theirs)
    sys.stdout.write(f"of ExecuTorch's {len(theirs)}: {len(good)} equal, {share:.0%}\n")
    sys.stdout.write(f"not equal: {' '.join(rest)}\nno sample: {' '.join(untried)}\n")


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
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    known = operators()
    theirs = names_in(frozenset(op.name for op in known)) if options.executorch else {}
    names = {*options.names, *(name for some in theirs.values() for name in some)}
    wanted = [op for op in known if not names or op.name in names]
    refused: set[str] = set()
    total, whole = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.kvc"
        for op in wanted[options.part :: options.parts]:
            ways = (try_operator(op, w, options.samples, path) for w in options.ways)
            found = sum(ways, Counter())
            total += found
            if worst := worst_of(found):
                whole[worst] += 1
                refused |= set() if worst == "equal" else {op.name}
    if theirs:
        _report_theirs(theirs, refused)
    for title, counts in (("samples", total), ("operators, by their worst", whole)):
        words = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        sys.stdout.write(f"{title}: {words}\n")
    return 1 if total["wrong"] + total["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
