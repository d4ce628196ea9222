"""Speed with an adapter and without, in turns, and the memory that one takes.

`python tests/benchmarks/adapters.py BUNDLE [--rank 16] [--threads 1] [--rounds 15]`.
BUNDLE is a language model compiled with `--adapters`. The adapter is random, of every
layer that has slots. Prints the median time of a decoded token and of a prompt of 128
tokens with and without it, the median ratio, and the resident memory that loading the
adapter takes.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from xnnpack_rounds import describe_machine

from kvc.runtime import Program, Session, load
from kvc.runtime.adapters.adapter_file import write_adapter
from kvc.runtime.adapters.quantized import stored_layers
from kvc.schema.adapters import A, B, slots_of

PROMPT = np.arange(1, 129)[None]
TOKEN = np.array([[5]])
DECODED = 24


def random_adapter(program: Program, rank: int, path: Path) -> int:
    """Write an adapter of all layers; return the bytes of the file."""
    random, bare = np.random.default_rng(0), program._engine.program
    layers = {}
    for name, parts in slots_of(bare).items():
        widths = {
            part: parts[part][1].type.dims[-1] for part in (A, B) if part in parts
        }
        layers[name] = {
            part: random.normal(0, 0.01, (rank, width)).astype(np.float32)
            for part, width in widths.items()
        }
    write_adapter(path, program.identity, stored_layers(layers, bare))
    return path.stat().st_size


def decoding(session: Session) -> float:
    """Return the milliseconds of a decoded token after a prompt."""
    began = time.perf_counter()
    for _ in range(DECODED):
        session.call("decode", TOKEN)
    took = time.perf_counter() - began
    session.rewind(DECODED)
    return took / DECODED * 1e3


def reading(session: Session) -> float:
    """Return the milliseconds of a prompt; the session then holds it."""
    session.reset()
    began = time.perf_counter()
    session.call("prefill", PROMPT)
    return (time.perf_counter() - began) * 1e3


def resident() -> int:
    """Return the resident bytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    print(describe_machine(), f"{asked.threads} threads, rank {asked.rank}")
    with (
        load(asked.bundle, threads=asked.threads) as program,
        tempfile.TemporaryDirectory() as folder,
    ):
        program.pack()
        path = Path(folder) / "random.kva"
        nbytes = random_adapter(program, asked.rank, path)
        before = resident()
        program.adapters.load(path)
        grown = resident() - before
        print(f"file {nbytes / 1e6:.1f} MB, resident {grown / 1e6:.1f} MB more")
        with program.session() as plain, program.session(adapter="random") as adapted:
            both = (plain, adapted)
            for what, run in (("prompt of 128", reading), ("token", decoding)):
                show(what, run, both, asked.rounds)


def show(
    what: str,
    run: Callable[[Session], float],
    sessions: tuple[Session, Session],
    rounds: int,
) -> None:
    rows = [tuple(map(run, sessions)) for _ in range(rounds)]
    plain, adapted = (median(row[i] for row in rows) for i in range(2))
    ratio = median(row[1] / row[0] for row in rows)
    print(f"{what}: {plain:.2f} ms, with the adapter {adapted:.2f} ms, {ratio:.3f}")


if __name__ == "__main__":
    main()
