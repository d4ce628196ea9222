"""Measure tokens a second of batches: a loop, `kvc batch`, and actors of Ray.

    python tests/benchmarks/batch.py model.kvc --prompts 64 --tokens 48

Each way answers the same prompts, greedily and without an end, in a process of its own,
in turn, `--rounds` times. Loading, and starting the cluster, do not count. The plain
loop submits requests to the scheduler and counts tokens; it is what the others are
compared with. The table has medians, with the least and the greatest; the greatest are
compared, since only other work of the machine makes one slower.
"""

import argparse
import json
import queue
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KVC = Path(sys.executable).parent / "kvc"
WORDS = [
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "is",
    "you",
    "that",
    "it",
    "he",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "his",
    "they",
    "at",
]
LOOP = "--one-loop"


def main() -> None:
    """Measure and print."""
    given = arguments()
    if given.one_loop:
        sys.stdout.write(f"{loop(given)}\n")
        return
    ways = ["loop", "kvc batch", *(f"ray, {n} actors" for n in given.actors)]
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name, cluster(max(given.actors)) as address:
        folder = Path(name)
        write_prompts(folder / "in.jsonl", given.prompts)
        for _ in range(given.rounds):
            speeds["loop"].append(measured_loop(given))
            speeds["kvc batch"].append(measured_batch(given, folder))
            for count in given.actors:
                options = ["--ray", "--address", address, "--actors", str(count)]
                speed = measured_batch(given, folder, *options)
                speeds[f"ray, {count} actors"].append(speed)
    show(speeds)


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--actors", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument(LOOP, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def prompts(count: int) -> list[str]:
    """Return prompts of 10 to 100 words."""
    chosen = random.Random(0)
    return [" ".join(chosen.choices(WORDS, k=10 + n % 91)) for n in range(count)]


def write_prompts(path: Path, count: int) -> None:
    """Write the input of `kvc batch`."""
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts(count)))


@contextmanager
def cluster(processors: int) -> Iterator[str]:
    """Start a cluster that has as many processors as actors, whatever there are."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": processors})
    try:
        yield made.address
    finally:
        made.shutdown()


def loop(given: argparse.Namespace) -> float:
    """Answer all prompts by a scheduler; return tokens a second."""
    from kvc.runtime import load
    from kvc.runtime.generation import settings_of
    from kvc.runtime.tokenizers import tokenizer_of
    from kvc.serving.scheduling import Limits, Request, Scheduler

    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    with load(given.bundle, threads=1) as program:
        tokenizer = tokenizer_of(program)
        asked = {"max_tokens": given.tokens, "temperature": 0.0, "stop_tokens": []}
        settings = settings_of(program.metadata, asked)
        limits = Limits(queue=given.prompts)
        with Scheduler(program, limits) as scheduler:
            began = time.perf_counter()
            for text in prompts(given.prompts):
                counted = Counted(ended)
                tokens = tokenizer.encode(text)
                scheduler.submit(Request(tokens, settings, tokenizer), counted)
            made = sum(ended.get() for _ in range(given.prompts))
            return made / (time.perf_counter() - began)


class Counted:
    """Counts the tokens of an answer."""

    def __init__(self, ended: "queue.SimpleQueue[int]") -> None:
        self._ended, self._tokens = ended, 0

    def __call__(self, update: object) -> None:
        """Count new tokens."""
        self._tokens += len(update.tokens)
        if update.ending is not None:
            self._ended.put(self._tokens)


def measured_loop(given: argparse.Namespace) -> float:
    """Return the speed of the loop, in a process of its own."""
    command = [sys.executable, __file__, given.bundle, LOOP]
    sizes = ["--prompts", str(given.prompts), "--tokens", str(given.tokens)]
    done = subprocess.run([*command, *sizes], capture_output=True, check=True)
    return float(done.stdout)


def measured_batch(given: argparse.Namespace, folder: Path, *options: str) -> float:
    """Return the speed that `kvc batch` tells at its end."""
    asked = {"ignore_eos": True}
    path = folder / "asked.jsonl"
    rows = [json.loads(line) for line in (folder / "in.jsonl").open()]
    path.write_text(
        "".join(json.dumps(row | {"sampling_params": asked}) + "\n" for row in rows)
    )
    command = [KVC, "batch", path, "-o", folder / "out.jsonl", "--force"]
    command += ["--bundle", given.bundle, "-n", str(given.tokens)]
    command += ["--temperature", "0", "--threads", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(re.findall(r"([\d.]+) tokens/s", done.stderr)[-1])


def show(speeds: dict[str, list[float]]) -> None:
    """Print a table."""
    base = max(speeds["loop"])
    sys.stdout.write("| way | tokens/s | of the loop |\n| --- | --- | --- |\n")
    for way, found in speeds.items():
        middle = statistics.median(found)
        span = f"{min(found):.0f} to {max(found):.0f}"
        row = f"| {way} | {middle:.0f} ({span}) | {max(found) / base:.0%} |\n"
        sys.stdout.write(row)


if __name__ == "__main__":
    main()
