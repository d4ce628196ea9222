"""Try hostile files: `python tests/hostile/campaign.py FOLDER [--seconds 600]`.

Real bundles are changed in places that mean something, sealed again with right
digests, and loaded. Those that are accepted run twice, and must compute the same
(`tests/support/hostile_cases.py`). So are data files and saved sessions
(`hostile_beside.py`), and tokenizers, chat templates and recipes (`hostile_texts.py`).
FOLDER gets the seeds, what has been done so far, from which the next run goes on, and a
file for each finding. `--page FILE` writes a summary of what has been found, and runs
nothing; records of other seeds, `FOLDER/*/record.json`, are counted in. `--checks`
prints how often each check has refused a file, those that never did too. `--case SEED
NUMBER` tries one again, in this process.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

# Forked processes have no threads but one, and would wait for those of OpenMP.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from forked_batches import Ended, Limits, answers
from hostile_cases import FINDINGS, Verdict
from hostile_files import NAMES, Variants, open_variants
from verifier_checks import all_checks

from kvc.runtime import SoftwareDevice
from kvc.runtime.kernels.table import load_kernels, load_preparations

BATCH = 25  # cases that one process tries
LIMITS = Limits(seconds=8, nbytes=6 << 30)  # for loading and both runs
OFTEN = 10  # checks that a page shows
CRASH, LONG = "ends the process", "runs for long"


class Record:
    """What has been tried so far; kept in a file after each batch."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "record.json"
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.next: Counter[str] = Counter(known.get("next", {}))
        self.kinds: Counter[str] = Counter(known.get("kinds", {}))
        self.checks: Counter[str] = Counter(known.get("checks", {}))
        self.findings: list[list[object]] = known.get("findings", [])
        self.seconds: float = known.get("seconds", 0.0)

    def include(self, other: "Record") -> None:
        """Count in what has been tried of other seeds."""
        self.next += other.next
        self.kinds += other.kinds
        self.checks += other.checks
        self.findings += other.findings
        self.seconds += other.seconds

    def add(self, seed: str, number: int, verdict: Verdict) -> None:
        """Note a case."""
        self.next[seed] = number + 1
        self.kinds[verdict.kind] += 1
        if verdict.kind == "refused":
            self.checks[verdict.where] += 1
        if verdict.kind in (*FINDINGS, CRASH):
            self.findings.append([seed, number, verdict.kind, verdict.where])

    def save(self) -> None:
        """Write it, whole or not at all."""
        content = {name: value for name, value in vars(self).items() if name[0] != "_"}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(content, indent=1))
        beside.rename(self._path)


def try_batch(
    seed: Variants, first: int, count: int, folder: Path, record: Record
) -> None:
    """Try cases in a process of their own, and go on after one that ends it."""

    def try_cases(numbers: range) -> list[Verdict]:
        return [seed.try_case(number, folder) for number in numbers]

    for number, answer in answers(try_cases, range(first, first + count), LIMITS):
        match answer:
            case Ended():
                verdict = _ended(answer)
            case [str(kind), str(where)]:
                verdict = Verdict(kind, where)
        record.add(seed.name, number, verdict)


def _ended(how: Ended) -> Verdict:
    """Return the verdict on a case within which the process ended."""
    return Verdict(LONG) if how.too_long else Verdict(CRASH, f"code {how.code}")


def keep_finding(
    seeds: Mapping[str, Variants], finding: list[object], folder: Path
) -> None:
    """Write the file of a finding."""
    name, number = str(finding[0]), int(str(finding[1]))
    content = seeds[name].content(number)
    if content is not None:
        path = folder / "findings" / f"{name} {number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def run(folder: Path, names: list[str], seconds: float, cases: int | None) -> Record:
    """Try cases of all seeds by turns, until the time is over or all are done."""
    seeds = {seed.name: seed for seed in open_variants(names, folder)}
    load_kernels(), load_preparations()  # once, not in each process
    record = Record(folder)
    start = begin = time.monotonic()
    kept = len(record.findings)
    while time.monotonic() - start < seconds:
        left = [name for name in seeds if cases is None or record.next[name] < cases]
        if not left:
            break
        name = min(left, key=lambda name: record.next[name])
        count = BATCH if cases is None else min(BATCH, cases - record.next[name])
        try_batch(seeds[name], record.next[name], count, folder, record)
        now = time.monotonic()
        record.seconds += now - begin
        begin = now
        record.save()
        for finding in record.findings[kept:]:
            print(*finding, sep=" | ", flush=True)
            keep_finding(seeds, finding, folder)
        kept = len(record.findings)
    return record


def page(record: Record) -> str:
    """Return what has been found, as Markdown."""
    files, hours = sum(record.next.values()), record.seconds / 3600
    nothing = ("refused", "cannot be made", "equal to the seed")
    accepted = files - sum(record.kinds[kind] for kind in nothing)
    checks = all_checks()
    silent = len(checks - record.checks.keys())
    findings = [f"- {' | '.join(map(str, one))}" for one in record.findings]
    often = Counter(dict(record.checks.most_common(OFTEN)))
    lines = [
        "# Hostile files",
        "",
        f"{files:,} variants of {len(record.next)} files were tried in {hours:.2f}",
        f"hours of a process, beside others; {accepted:,} were accepted.",
        "Written by `tests/hostile/campaign.py FOLDER --page FILE`; do not edit.",
        "",
        *_table("verdict", record.kinds),
        *_table("variants of", _by_kind(record.next)),
        "## Findings",
        "",
        *(findings or ["None."]),
        "",
        "## Checks",
        "",
        f"Of {len(checks)} checks {silent} have refused none of these files;",
        "tests guard them ([CHECKS.md](CHECKS.md)). `--checks` lists all checks.",
        "These have refused most files:",
        "",
        *_table("check", often),
    ]
    return "\n".join(lines)


def checks_of(record: Record) -> list[str]:
    """Return a line for each check: how many files it refused."""
    every = Counter(dict.fromkeys(all_checks(), 0))
    every.update(record.checks)
    return [f"{count:8,} {name}" for name, count in every.most_common()]


def _by_kind(variants: Counter[str]) -> Counter[str]:
    """Return how many variants there are of bundles, tokenizers and so on."""
    kinds: Counter[str] = Counter()
    for name, count in variants.items():
        kind, of, _ = name.partition(" of ")
        kinds[kind if of or kind == "recipes" else "bundles"] += count
    return kinds


def _table(what: str, counts: Counter[str]) -> list[str]:
    rows = [f"| `{name}` | {count:,} |" for name, count in counts.most_common()]
    return [f"| {what} | files |", "| --- | ---: |", *rows, ""]


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cases", type=int, help="the most of each seed")
    parser.add_argument("--seeds", nargs="*", default=list(NAMES))
    parser.add_argument("--nice", type=int, default=19)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--checks", action="store_true")
    parser.add_argument("--case", nargs=2, metavar=("SEED", "NUMBER"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.case:
        name, number = options.case
        (seed,) = open_variants([name], options.folder)
        with tempfile.TemporaryDirectory() as folder:  # another run may write there
            print(seed.try_case(int(number), Path(folder)))
        return 0
    if options.page or options.checks:
        record = Record(options.folder)
        for path in sorted(options.folder.glob("*/record.json")):
            record.include(Record(path.parent))
        if options.page:
            options.page.write_text(page(record))
        if options.checks:
            print("\n".join(checks_of(record)))
        return 0
    os.nice(options.nice)
    warnings.filterwarnings("ignore", category=SoftwareDevice)
    record = run(options.folder, options.seeds, options.seconds, options.cases)
    print(json.dumps(record.kinds, indent=1))
    return 1 if record.findings else 0


if __name__ == "__main__":
    sys.exit(main())
