"""Control flow, measured: bytes that a branch writes, and what a branch costs.

`python tests/benchmarks/control_flow.py [--layers 30]`. The model is the cache half of
a decoder: for each layer a cache [1, 3, 1024, 64] that one branch writes a token to and
the other leaves alone. Beside it are the same writes without branches, and eager
PyTorch with its branches, which clones the caches in both.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.runtime import Session, load

HEADS, SLOTS, WIDTH = 3, 1024, 64
TOKEN_NBYTES = HEADS * WIDTH * 4


class Caches(nn.Module):
    """One cache a layer; `branch` writes in branches, `straight` always."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        for i in range(layers):
            self.register_buffer(f"k{i}", torch.zeros(1, HEADS, SLOTS, WIDTH))
        self.layers = layers

    def branch(self, keep: Tensor, rows: Tensor, at: Tensor) -> Tensor:
        for i in range(self.layers):
            cache = self.get_buffer(f"k{i}")
            new = torch.cond(
                keep,
                lambda c, rows: c.index_copy(2, at, rows),
                lambda c, rows: c.clone(),
                (cache, rows),
            )
            cache.copy_(new)
        return rows * 2

    def straight(self, keep: Tensor, rows: Tensor, at: Tensor) -> Tensor:
        for i in range(self.layers):
            self.get_buffer(f"k{i}").index_copy_(2, at, rows)
        return rows * 2


def median_us(work: Callable[[], object], repeats: int = 300) -> float:
    """Return the median time of some runs, after a few that are not counted."""
    times = []
    for number in range(repeats + 10):
        start = time.perf_counter()
        work()
        if number >= 10:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def written_bytes(session: Session, keep: Tensor, place: int) -> int:
    """Return the bytes of caches that differ after a step of fresh numbers."""
    before = {name: np.array(kept) for name, kept in session.state.items()}
    rows = torch.rand(1, HEADS, 1, WIDTH) + place
    session.call("branch", keep, rows, torch.tensor([place]))
    return sum(
        int((np.array(kept) != before[name]).sum()) * 4
        for name, kept in session.state.items()
    )


def show(*columns: object) -> None:
    """Print a line of a table."""
    sys.stdout.write("".join(f"{column!s:>24}" for column in columns) + "\n")
    sys.stdout.flush()


def measure(path: Path, layers: int) -> None:
    """Print bytes and times of a step."""
    rows, at = torch.rand(1, HEADS, 1, WIDTH), torch.tensor([5])
    yes, no = torch.tensor(True), torch.tensor(False)
    args = (yes, rows, at)
    model = Caches(layers).eval()
    methods = [Method(name, args=args) for name in ("branch", "straight")]
    compile_program(model, methods).save(path)
    with load(path) as program, program.session() as session:
        show("branch taken", "bytes changed", "of one token")
        show("writes", written_bytes(session, yes, 7), layers * TOKEN_NBYTES)
        show("leaves alone", written_bytes(session, no, 8), 0)
        show("")
        show("step", "us", "us a layer")
        for name, keep in (("branch", yes), ("branch", no), ("straight", yes)):
            us = median_us(lambda n=name, k=keep: session.call(n, k, rows, at))
            show(f"{name}, {bool(keep)}", f"{us:.0f}", f"{us / layers:.1f}")
    with torch.no_grad():
        us = median_us(lambda: model.branch(*args), 30)
    show("eager branch, True", f"{us:.0f}", f"{us / layers:.1f}")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=30)
    layers = parser.parse_args().layers
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder) / "caches.kvc", layers)


if __name__ == "__main__":
    main()
