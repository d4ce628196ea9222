"""Use sessions for long: `python tests/hostile/soak.py --steps 1000000 --threads 8`.

Each round, threads do at random by the seed what can be done with sessions of one
program (`tests/support/session_plays.py`); then one thread does the same once more,
with a program of its own, and every result must be equal. After each round all
sessions are closed: memory, descriptors, maps and threads must be flat over the run
(`tests/support/flatness.py`). `--folder` keeps the bundles, and what has been done so
far, from which the next run of the same seed goes on; `--round` tries one round again.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

# A thread of its own for each thread of OpenMP would be noise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from flatness import growth, sample, steeper
from hostile_seeds import write_seed
from session_plays import KINDS, Done
from session_rounds import Bench

from kvc.compiler import compile_program
from kvc.compiler.models import demo
from kvc.recipes import load_recipe

OPERATIONS = 60  # of each thread in a round
SAY_SECONDS = 30


class Record:
    """What has been done so far; kept after each round, where there is a file."""

    def __init__(self, path: Path | None, seed: int, threads: int) -> None:
        """Read what an earlier run of the same seed and threads left."""
        self._path, self._of = path, {"seed": seed, "threads": threads}
        known = json.loads(path.read_text()) if path and path.exists() else {}
        if known and {name: known[name] for name in self._of} != self._of:
            sys.exit(f"{path} is of another seed or number of threads")
        self.rounds: int = known.get("rounds", 0)
        self.steps: int = known.get("steps", 0)
        self.seconds: float = known.get("seconds", 0.0)
        self.processor_seconds: float = known.get("processor_seconds", 0.0)
        self.operations: Counter[str] = Counter(known.get("operations", {}))
        self.findings: list[str] = known.get("findings", [])

    def add(self, did: Sequence[Sequence[Done]], findings: Sequence[str]) -> None:
        """Note a round."""
        for done in did:
            self.operations.update(one.what for one in done)
            self.steps += sum(one.steps for one in done)
        self.findings += [f"round {self.rounds}: {one}" for one in findings]
        self.rounds += 1

    def save(self) -> None:
        """Write it, whole or not at all."""
        if self._path is None:
            return
        found = {name: value for name, value in vars(self).items() if name[0] != "_"}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._of | found, indent=1))
        beside.rename(self._path)


def write_bundles(folder: Path, names: Sequence[str]) -> Mapping[str, Path]:
    """Return the bundles, compiled where they are not there yet."""
    paths = {name: folder / f"{name}.kvc" for name in names}
    for name, path in paths.items():
        if path.exists():
            continue
        print(f"compiling {name}", file=sys.stderr)
        if name == "demo":
            spec = demo()
            recipe = load_recipe("cpu_fp32")
            compile_program(spec.model, spec.methods, recipe).save(path)
        else:
            write_seed(name, path)
    return paths


def run(
    paths: Mapping[str, Path], record: Record, options: argparse.Namespace
) -> list[dict[str, int]]:
    """Do rounds of all bundles by turns; return what the process had after each."""
    samples: list[dict[str, int]] = []
    with ExitStack() as stack:
        benches = [
            Bench(name, KINDS[name], path, stack) for name, path in paths.items()
        ]
        threads = stack.enter_context(ThreadPoolExecutor(options.threads))
        start = begin = said = time.monotonic()
        worked = time.process_time()
        while record.steps < options.steps and begin - start < options.seconds:
            if options.round is not None:
                record.rounds = options.round
            bench = benches[record.rounds % len(benches)]
            seed = f"{options.seed} {record.rounds}"
            known = len(record.findings)
            record.add(
                *bench.run_round(seed, threads, options.threads, options.operations)
            )
            samples.append(sample())
            now = time.monotonic()
            record.seconds += now - begin
            record.processor_seconds += time.process_time() - worked
            begin, worked = now, time.process_time()
            record.save()
            for finding in record.findings[known:]:
                print(finding, flush=True)
            if options.round is not None:
                break
            if now - said > SAY_SECONDS:
                said = now
                print(_line(record), samples[-1], flush=True)
    return samples


def _line(record: Record) -> str:
    operations = record.operations.total()
    return (
        f"{record.seconds:,.0f} s, {record.processor_seconds:,.0f} s of processors, "
        f"{record.rounds:,} rounds, {operations:,} operations, {record.steps:,} steps, "
        f"{len(record.findings)} findings"
    )


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    parser.add_argument("--bundles", nargs="*", default=list(KINDS))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--round", type=int)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        kept = options.folder is not None and options.round is None
        path = folder / "record.json" if kept else None
        record = Record(path, options.seed, options.threads)
        paths = write_bundles(folder, options.bundles)
        samples = run(paths, record, options)
        if samples:
            print("grown by", growth(samples))
            for name, more in steeper(samples).items():
                record.findings.append(f"{name} grew by {more:,}")
                print(record.findings[-1])
            record.save()
    print(json.dumps(record.operations, indent=1))
    print(_line(record))
    print("FINDINGS" if record.findings else "equal and flat")
    return 1 if record.findings else 0


if __name__ == "__main__":
    sys.exit(main())
