"""Try random programs that write through chains of views against eager.

`python tests/hostile/chains.py --to 3500 --seed 0`. Program N of seed S is that of the
number S * 1000000 + N. `--from` begins at another number, `--show` prints the code of
each finding, `--json FILE` keeps what came of each program.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

# Forked processes have no threads but one, and would wait for those of OpenMP.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from forked_batches import Ended, Limits, answers
from quick_export import quicken_export
from random_chains import FINDINGS, draw, outcome

BATCH = 100  # programs that one process tries
LIMITS = Limits(60, 8 << 30)
APART = 1_000_000


def tried(number: int) -> list[str]:
    """Return what came of a program: its kind, and why."""
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(draw(number), Path(folder))
    return [found.kind, found.reason]


def results(first: int, end: int):
    """Yield the number of each program, and what came of it."""
    for begin in range(first, end, BATCH):
        numbers = range(begin, min(begin + BATCH, end))
        for number, answer in answers(
            lambda some: [*map(tried, some)], numbers, LIMITS
        ):
            if isinstance(answer, Ended):
                answer = ["error", f"the process ended with {answer.code}"]
            yield number, answer


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--to", type=int, default=3500)
    parser.add_argument("--show", action="store_true", help="print findings' code")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--nice", type=int, default=19)
    options = parser.parse_args()
    os.nice(options.nice)
    warnings.filterwarnings("ignore")
    quicken_export()
    base, known = options.seed * APART, {}
    for number, (kind, why) in results(base + options.first, base + options.to):
        known[number] = [kind, why]
        if kind in FINDINGS:
            print(number, kind, why[:300], sep=" | ", flush=True)
            if options.show:
                print(draw(number).text(), flush=True)
        if options.json:
            options.json.write_text(json.dumps(known, indent=0))
    kinds = (
        (kind, why[:80] if kind == "refused" else "") for kind, why in known.values()
    )
    counts = Counter(kinds)
    for (kind, why), count in counts.most_common():
        print(f"{count:6} {kind} {why}".rstrip())
    return 1 if any(kind in FINDINGS for kind, _ in known.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
