"""Caches, measured: bytes written, opening a session, resident memory, time of a step.

`python tests/benchmarks/states.py [--layers 30] [--positions 128,1024,8192]`. The model
is the cache half of model A: 30 layers of cache update and attention, 9 query and 3 key
heads of width 64, without the linear layers, so that what a cache costs is not hidden
after them. It runs as kvc compiles it, with one buffer a layer (`linear`) and with
`torch.cat` carried from call to call (`append`), beside two ways of plain torch in the
same process: `torch.cat` of the whole past at each step, and a static cache that is
copied whole at each step, as functional graphs do.
"""

import argparse
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.runtime import Session, load

HEADS, KV_HEADS, WIDTH = 9, 3, 64
MOST = 32768


class Layer(nn.Module):
    """A cache, and attention to it."""

    k: Tensor
    v: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(1, KV_HEADS, 1024, WIDTH))


class Linear(nn.Module):
    """Buffers written at a position."""

    position: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def step(self, q: Tensor, kv: Tensor) -> Tensor:
        """Append kv [1, kv_heads, seq, width] to every layer; attend from one query."""
        start = self.position.clone()
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.k.copy_(torch.ops.kvc.cache_update(layer.k, kv, start))
            layer.v.copy_(torch.ops.kvc.cache_update(layer.v, kv, start))
            q = torch.ops.kvc.attention(q, layer.k, layer.v, start + kv.shape[2])
        self.position.add_(kv.shape[2])
        return q


class Append(nn.Module):
    """Caches passed in and handed out."""

    def step(
        self, q: Tensor, kv: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Append kv [1, kv_heads, seq, width] to every layer; attend from one query."""
        present = []
        for i in range(0, len(past), 2):
            k, v = torch.cat([past[i], kv], 2), torch.cat([past[i + 1], kv], 2)
            q = scaled_dot_product_attention(q, k, v, enable_gqa=True)
            present += [k, v]
        return q, present


class Static(nn.Module):
    """What a functional graph does: a new whole cache, copied back."""

    def __init__(self, layers: int, slots: int) -> None:
        super().__init__()
        shape = (1, KV_HEADS, slots, WIDTH)
        self.caches = [torch.zeros(shape) for _ in range(2 * layers)]

    def step(self, q: Tensor, kv: Tensor, position: int) -> Tensor:
        """Write one token into every layer, and attend to all slots under a mask."""
        index = torch.tensor([position])
        seen = (torch.arange(self.caches[0].shape[2]) <= position)[None]
        for i in range(0, len(self.caches), 2):
            for cache in self.caches[i : i + 2]:
                cache.copy_(cache.index_copy(2, index, kv))
            k, v = self.caches[i : i + 2]
            q = scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        return q


def compile_linear(layers: int, path: Path) -> None:
    """Compile the buffers; their capacity is chosen when a session opens."""
    seq, capacity = Dim("seq", 1, 512), Dim("capacity", 512, MOST)
    method = Method(
        "step",
        args=(torch.zeros(1, HEADS, 1, WIDTH), torch.zeros(1, KV_HEADS, 2, WIDTH)),
        dynamic={"kv": {2: seq}},
    )
    states = [StateSpec(f"layers.*.{n}", axis=2, capacity=capacity) for n in "kv"]
    compile_program(Linear(layers), [method], states=states).save(path)


def compile_append(layers: int, path: Path) -> None:
    """Compile the carried caches."""
    past = [torch.zeros(1, KV_HEADS, 2, WIDTH) for _ in range(2 * layers)]
    length = Dim("past", 0, MOST)
    method = Method(
        "step",
        args=(
            torch.zeros(1, HEADS, 1, WIDTH),
            torch.zeros(1, KV_HEADS, 2, WIDTH),
            past,
        ),
        dynamic={
            "kv": {2: Dim("seq", 1, 512)},
            **{f"past[{i}]": {2: length} for i in range(2 * layers)},
        },
        carry={"past": "[1]"},
    )
    compile_program(Append(), [method]).save(path)


def anonymous_kb() -> int:
    """Return the resident anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def resident_kb(session: Session) -> int:
    """Return the memory of the pages of a session's states that are there."""
    pages = set()
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for array in session.state.values():
            first = array.ctypes.data // mmap.PAGESIZE
            last = (array.ctypes.data + array.nbytes - 1) // mmap.PAGESIZE
            pagemap.seek(8 * first)
            entries = np.frombuffer(pagemap.read(8 * (last + 1 - first)), np.uint64)
            present = np.flatnonzero(entries >> np.uint64(63))
            pages.update((present + first).tolist())
    return len(pages) * mmap.PAGESIZE // 1024


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of some runs, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def tokens(seq: int) -> tuple[Tensor, Tensor]:
    """Return a query, and keys of some tokens, nowhere zero."""
    return torch.rand(1, HEADS, 1, WIDTH) + 1, torch.rand(1, KV_HEADS, seq, WIDTH) + 1


def fill(session: Session, count: int) -> None:
    """Append tokens in chunks."""
    for done in range(0, count, 512):
        session.call("step", *tokens(min(512, count - done)))


def written_bytes(session: Session) -> tuple[int, int]:
    """Return the bytes of caches that differ after a step, and those of one token."""
    names = [name for name in session.state if name != "position"]
    before = {name: session.state[name].copy() for name in names}
    session.call("step", *tokens(1))
    changed = sum(
        int((session.state[name] != before[name]).sum()) * 4 for name in names
    )
    return changed, len(names) * KV_HEADS * WIDTH * 4


def show(*columns: object) -> None:
    """Print a line of a table."""
    sys.stdout.write("".join(f"{column!s:>16}" for column in columns) + "\n")
    sys.stdout.flush()


def measure_bytes(program: Path) -> None:
    """Compare the caches before and after a step."""
    show("position", "bytes changed", "of one token")
    with load(program) as loaded, loaded.session(capacity=2048) as session:
        for position in (1, 128, 1024):
            fill(session, position - int(session.position[0]))
            show(position, *written_bytes(session))


def measure_memory(program: Path, layers: int) -> None:
    """Open sessions, and fill one."""
    show("capacity", "open ms", "resident kB")
    with load(program) as loaded:
        loaded.session(capacity=512).close()
        for capacity in (1024, 8192, 32768):
            opening = median_ms(partial(loaded.session, capacity=capacity), 20)
            before = anonymous_kb()
            session = loaded.session(capacity=capacity)
            show(capacity, f"{opening:.3f}", anonymous_kb() - before)
            session.close()
        show("tokens", "resident kB", "of the tokens kB")
        with loaded.session(capacity=MOST) as session:
            for count in (1, 64, 512, 4096, 8192):
                fill(session, count - int(session.position[0]))
                ideal = 2 * layers * KV_HEADS * WIDTH * 4 * count // 1024
                show(count, resident_kb(session), ideal)
            session.rewind(8192 - 512)
            show("rewound to 512", resident_kb(session), ideal * 512 // 8192)
            session.reset()
            show("reset", resident_kb(session), 0)


def measure_steps(
    linear: Path, append: Path, layers: int, positions: list[int], repeats: int
) -> None:
    """Time one token at several lengths."""
    show("position", "linear ms", "append ms", "torch.cat ms", "static copy ms")
    q, kv = tokens(1)
    with load(linear) as one, load(append) as other:
        for position in positions:
            session = one.session(capacity=max(512, position + 2 * repeats))
            fill(session, position)
            ours = median_ms(partial(session.call, "step", q, kv), repeats)
            session.close()
            growing = other.session()
            fill(growing, position)
            grown = median_ms(partial(growing.call, "step", q, kv), repeats)
            growing.close()
            shape = (1, KV_HEADS, position, WIDTH)
            past = [torch.rand(shape) for _ in range(2 * layers)]
            cat = partial(Append().step, q, kv, past)
            copy = partial(Static(layers, position + 1).step, q, kv, position)
            with torch.inference_mode():
                eager = (median_ms(cat, repeats), median_ms(copy, repeats))
            figures = (ours, grown, *eager)
            show(position, *(f"{figure:.2f}" for figure in figures))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--positions", default="128,1024,8192")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(0)
    positions = [int(text) for text in options.positions.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        linear, append = Path(folder) / "linear.kvc", Path(folder) / "append.kvc"
        compile_linear(options.layers, linear)
        compile_append(options.layers, append)
        measure_bytes(linear)
        measure_memory(linear, options.layers)
        measure_steps(linear, append, options.layers, positions, options.repeats)


if __name__ == "__main__":
    main()
