"""Try random programs of torch's operators against eager, by three recipes.

`python tests/hostile/against_eager.py FOLDER --operators 1 --to 100000 --seed 0`, and
`--operators 8 --to 20000`. FOLDER keeps what has been done so far, from which the next
run goes on, and from which operators programs are drawn; `--from` begins at another
number, and `--again` tries once more what failed or was refused. `--program NUMBER`
tries one again, in this process, and prints the least of it that fails as a test.
`--page FILE` writes what has been found as a page, and runs nothing. Needs
`expecttest`.
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
from pathlib import Path

# Forked processes have no threads but one, and would wait for those of OpenMP.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from eager_page import page
from forked_batches import Ended, Limits, answers
from operator_programs import OperatorProgram
from operator_shrinking import as_test, shrunk
from operator_verdicts import FINDINGS, KINDS, Judge, Verdict
from quick_export import quicken_export
from random_operators import DTYPES, draw, samples_of, usual_names

BATCH = {1: 960, 8: 240}  # programs that one process tries
TOGETHER = {1: 32, 8: 8}  # programs that are compiled as one
LIMITS = {length: Limits(40, 8 << 30, many) for length, many in TOGETHER.items()}
ALONE = Limits(40, 8 << 30)
EAGER_ENDS = ("none", "eager ends the process", "")
CRASH, LONG = "ends the process", "runs for long"


class Record:
    """What has been tried so far of one length and seed; kept in a file.

    Attributes:
        names: of the operators that programs are drawn from.
        next: the number of the first program that has not been tried.
        kinds: how many programs came to what.
        refused: number, recipe and reason of each that was refused.
        findings: number, kind, recipe and reason of each that failed.
        seconds: of a processor.
    """

    def __init__(self, folder: Path, length: int, seed: int) -> None:
        self._path = folder / f"operators {length} seed {seed}.json"
        self.length, self.seed = length, seed
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.names: list[str] = known.get("names") or list(usual_names())
        self.next: int = known.get("next", 0)
        self.kinds: Counter[str] = Counter(known.get("kinds", {}))
        self.refused: list[list[object]] = known.get("refused", [])
        self.findings: list[list[object]] = known.get("findings", [])
        self.seconds: float = known.get("seconds", 0.0)

    def failures(self) -> list[int]:
        """Return the numbers of programs that failed or were refused."""
        return sorted(int(str(one[0])) for one in (*self.findings, *self.refused))

    def forget(self, numbers: Sequence[int]) -> None:
        """Forget what came of such programs."""
        findings = [one for one in self.findings if one[0] in numbers]
        refused = [one for one in self.refused if one[0] in numbers]
        self.kinds -= Counter(str(finding[1]) for finding in findings)
        self.kinds -= Counter({"refused": len(refused)})
        self.findings = [one for one in self.findings if one not in findings]
        self.refused = [one for one in self.refused if one not in refused]

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
            self.refused.append([number, recipe, why])
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
    begin = time.monotonic()
    batch = BATCH[record.length]
    for first in range(max(numbers.start, record.next), numbers.stop, batch):
        if time.monotonic() - begin > seconds:
            break
        try_all(record, judge, range(first, min(first + batch, numbers.stop)))


def run_again(record: Record, judge: Judge) -> None:
    """Try once more what has failed, and what was refused."""
    numbers, batch = record.failures(), TOGETHER[record.length] * 3
    for first in range(0, len(numbers), batch):
        some = numbers[first : first + batch]
        record.forget(some)
        try_all(record, judge, some)


def try_all(record: Record, judge: Judge, numbers: Sequence[int]) -> None:
    """Try some programs, and note what came of them."""
    before, known = _seconds(), len(record.findings)
    for number, answer in tried(record, judge, numbers):
        record.add(number, answer)
    record.seconds += _seconds() - before
    record.save()
    for finding in record.findings[known:]:
        print(record.length, *finding, sep=" | ", flush=True)


def _seconds() -> float:
    """Return how long this process and those that it waited for had a processor."""
    return sum(os.times()[:4])


def tried(
    record: Record, judge: Judge, numbers: Sequence[int]
) -> Iterator[tuple[int, object]]:
    """Yield the number of each program, and what came of it."""

    def drawn(place: int) -> OperatorProgram:
        return draw(record.seed, numbers[place], record.length, record.names)

    def try_programs(places: range) -> list[Sequence[object]]:
        programs = [drawn(place) for place in places]
        names = [[step.name for step in each.code.steps] for each in programs]
        found = zip(judge.verdicts(programs), names, strict=True)
        return [(one.kind, one.reason, one.recipe, some) for one, some in found]

    def try_eager(places: range) -> list[object]:
        return [drawn(place).expected() is None for place in places]

    limits = LIMITS[record.length]
    for place, answer in answers(try_programs, range(len(numbers)), limits):
        match answer:
            case Ended():
                alone = answers(try_eager, range(place, place + 1), ALONE)
                ends = any(isinstance(made, Ended) for _, made in alone)
                yield numbers[place], list(EAGER_ENDS) if ends else answer
            case [str(kind), str(why), str(recipe), [*names]]:
                judge.remember(list(map(str, names)), kind)  # for the next process
                yield numbers[place], [kind, why, recipe]


def prepare(names: Sequence[str]) -> None:
    """Make all samples, once and not in each process."""
    print("making torch's samples", file=sys.stderr)
    for name in names:
        for dtype in DTYPES:
            samples_of(name, dtype)


def show(record: Record, number: int) -> Verdict:
    """Try one program again; print the least of it that fails, as a test."""
    program = draw(record.seed, number, record.length, record.names)
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
    record = Record(options.folder, length, seed)
    if options.program is not None:
        return 1 if show(record, options.program).kind in FINDINGS else 0
    os.nice(options.nice)
    prepare(record.names)
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
