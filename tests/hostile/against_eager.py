"""Try random programs of torch's operators against eager, by three recipes.

`python tests/hostile/against_eager.py FOLDER --operators 1 --to 100000 --seed 0`, and
`--operators 8 --to 20000`. FOLDER keeps what has been done so far, from which the next
run goes on; `--from` begins at another number, and `--again` tries once more what
failed. `--program NUMBER` tries one again, in this process, and prints the least of it
that fails as a test. `--page FILE` writes what has been found as a page, and runs
nothing. Needs `expecttest`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

# Forked processes have no threads but one, and would wait for those of OpenMP.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from eager_page import page
from forked_batches import Ended, Limits, answers
from operator_shrinking import as_test, shrunk
from operator_verdicts import FINDINGS, KINDS, Judge, Verdict
from quick_export import quicken_export
from random_operators import DTYPES, draw, samples_of, usual_names

BATCH = 240  # programs that one process tries
TOGETHER = {1: 12, 8: 3}  # programs that are compiled as one
LIMITS = {length: Limits(40, 8 << 30, many) for length, many in TOGETHER.items()}
CRASH, LONG = "ends the process", "runs for long"


class Record:
    """What has been tried so far of one length and seed; kept in a file."""

    def __init__(self, folder: Path, length: int, seed: int) -> None:
        self._path = folder / f"operators {length} seed {seed}.json"
        self.length, self.seed = length, seed
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.next: int = known.get("next", 0)
        self.kinds: Counter[str] = Counter(known.get("kinds", {}))
        self.refusals: Counter[str] = Counter(known.get("refusals", {}))
        self.findings: list[list[object]] = known.get("findings", [])
        self.seconds: float = known.get("seconds", 0.0)

    def forget_findings(self) -> list[int]:
        """Forget what failed, and return the numbers of these programs."""
        numbers = [int(str(finding[0])) for finding in self.findings]
        self.kinds -= Counter(str(finding[1]) for finding in self.findings)
        self.findings = []
        return numbers

    def add(self, number: int, answer: object) -> None:
        """Note what came of a program."""
        match answer:
            case Ended():
                kind = LONG if answer.too_long else CRASH
                why, recipe = f"code {answer.code}", ""
            case [str(kind), str(why), str(recipe)]:
                pass
        self.next = max(self.next, number + 1)
        self.kinds[kind] += 1
        if kind == "refused":
            self.refusals[why.partition(" in forward")[0][:150]] += 1
        if kind in FINDINGS or isinstance(answer, Ended):
            self.findings.append([number, kind, recipe, why])

    def save(self) -> None:
        """Write it, whole or not at all."""
        content = {name: value for name, value in vars(self).items() if name[0] != "_"}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(content, indent=1))
        beside.rename(self._path)


def run(record: Record, judge: Judge, numbers: range, seconds: float) -> None:
    """Try programs until the time is over or all are done."""
    start = max(numbers.start, record.next)
    begin = time.monotonic()
    for first in range(start, numbers.stop, BATCH):
        before, known = time.monotonic(), len(record.findings)
        if before - begin > seconds:
            break
        some = range(first, min(first + BATCH, numbers.stop))
        for number, answer in tried(record, judge, some):
            record.add(number, answer)
        record.seconds += time.monotonic() - before
        record.save()
        for finding in record.findings[known:]:
            print(record.length, *finding, sep=" | ", flush=True)


def run_again(record: Record, judge: Judge) -> None:
    """Try once more what has failed, each program beside those it was compiled with."""
    together = TOGETHER[record.length]
    for number in record.forget_findings():
        first = number - number % together
        beside = range(first, min(first + together, record.next))
        for other, answer in tried(record, judge, beside):
            if other == number:
                record.add(number, answer)
    record.save()


def tried(record: Record, judge: Judge, numbers: range) -> Iterator[tuple[int, object]]:
    """Yield the number of each program, and what came of it."""
    length, seed = record.length, record.seed

    def try_programs(some: range) -> list[Sequence[object]]:
        programs = [draw(seed, number, length) for number in some]
        names = [[step.name for step in each.code.steps] for each in programs]
        found = zip(judge.verdicts(programs), names, strict=True)
        return [(*astuple(verdict), some) for verdict, some in found]

    for number, answer in answers(try_programs, numbers, LIMITS[length]):
        match answer:
            case Ended():
                yield number, answer
            case [str(kind), str(why), str(recipe), [*names]]:
                judge.remember(list(map(str, names)), kind)  # for the next process
                yield number, [kind, why, recipe]


def prepare() -> None:
    """Make all samples, once and not in each process."""
    print("making torch's samples", file=sys.stderr)
    for name in usual_names():
        for dtype in DTYPES:
            samples_of(name, dtype)


def show(length: int, seed: int, number: int) -> Verdict:
    """Try one program again; print the least of it that fails, as a test."""
    program = draw(seed, number, length)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder) / "program.kvc")
        (verdict,) = judge.verdicts([program])
        print(verdict)
        if verdict.kind in FINDINGS:
            print(as_test(shrunk(program, verdict, judge), verdict.recipe))
    return verdict


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--operators", type=int, choices=TOGETHER, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--to", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--again", action="store_true", help="try findings again")
    parser.add_argument("--nice", type=int, default=19)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--program", type=int, metavar="NUMBER")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    length, seed = options.operators, options.seed
    if options.page:
        records = [Record(options.folder, each, seed) for each in TOGETHER]
        options.page.write_text(page(records))
        return 0
    quicken_export()
    if options.program is not None:
        return 1 if show(length, seed, options.program).kind in FINDINGS else 0
    os.nice(options.nice)
    prepare()
    record = Record(options.folder, length, seed)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder) / "programs.kvc")
        if options.again:
            run_again(record, judge)
        else:
            run(record, judge, range(options.first, options.to), options.seconds)
    print(json.dumps({kind: record.kinds[kind] for kind in KINDS}, indent=1))
    return 1 if record.findings else 0


if __name__ == "__main__":
    sys.exit(main())
