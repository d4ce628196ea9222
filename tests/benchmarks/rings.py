"""Rings of a window beside caches that keep everything: memory, and time of decoding.

`python tests/benchmarks/rings.py [--recipe fp32] [--layers 8] [--positions 1024 8192
32768] [--steps 40]`. Both bundles have the same weights, of one small decoder whose
layers all see the last 1,024 positions; in `full` they keep all and mask, in `ring`
they keep the window and one chunk. Both sessions are filled up to each number of
positions by prefill; then decode steps of the two take turns, rewound after each, so
that what else the machine does meets both alike. Memory is what a session has in pages
of its own (`Session.residency`); times are medians, with the fastest in parentheses.
What the two give is compared as well.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.runtime import Session, load

HEADS, KV_HEADS, WIDTH, VOCAB = 8, 2, 64, 512
WINDOW, CHUNK = 1024, 256
KINDS = ("full", "ring")


class Layer(nn.Module):
    """Attention over a window, then a perceptron."""

    keys: Tensor
    values: Tensor

    def __init__(self, slots: int, mode: str) -> None:
        super().__init__()
        dim = HEADS * WIDTH
        self.mode = mode
        self.norm = nn.RMSNorm(dim)
        self.q, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * KV_HEADS * WIDTH)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        for name in ("keys", "values"):
            zeros = torch.zeros(1, KV_HEADS, slots, WIDTH)
            self.register_buffer(name, zeros, persistent=False)

    def forward(self, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
        normed, ops = self.norm(x), torch.ops.kvc
        q = self.q(normed).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        pair = self.kv(normed).unflatten(-1, (2 * KV_HEADS, WIDTH)).transpose(1, 2)
        k, v = pair.chunk(2, 1)
        self.keys.copy_(ops.cache_update(self.keys, k, start, 2, self.mode))
        self.values.copy_(ops.cache_update(self.values, v, start, 2, self.mode))
        attended = ops.attention(
            q, self.keys, self.values, end, window_left=WINDOW - 1, layout=self.mode
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.up(x)))


class Decoder(nn.Module):
    """`prefill` and `decode` of tokens int64 [1, seq], logits of the last."""

    position: Tensor

    def __init__(self, layers: int, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        dim, ring = HEADS * WIDTH, kind == "ring"
        slots = WINDOW + CHUNK - 1 if ring else 2 * CHUNK
        self.embed, self.head = nn.Embedding(VOCAB, dim), nn.Linear(dim, VOCAB)
        mode = "circular" if ring else "linear"
        self.layers = nn.ModuleList(Layer(slots, mode) for _ in range(layers))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def prefill(self, tokens: Tensor) -> Tensor:
        start, seq = self.position.clone(), tokens.shape[1]
        places = (start + torch.arange(seq))[:, None]
        x = self.embed(tokens) + torch.cos(places / (1 + torch.arange(HEADS * WIDTH)))
        for layer in self.layers:
            x = layer(x, start, start + seq)
        self.position.add_(seq)
        logits: Tensor = self.head(x[:, -1])
        return logits

    def decode(self, token: Tensor) -> Tensor:
        return self.prefill(token)


def compile_kind(kind: str, recipe: str, layers: int, most: int, path: Path) -> None:
    """Compile the model with one kind of cache."""
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    seq = {"tokens": {1: Dim("seq", 1, CHUNK)}}
    methods = [
        Method("prefill", args=(tokens,), dynamic=seq, role="prefill"),
        Method("decode", args=(tokens[:, :1],), role="decode"),
    ]
    capacity = Dim("capacity", CHUNK, most)
    full = StateSpec("layers.*", axis=2, capacity=capacity)
    states, limit = ((full,), None) if kind == "full" else ((), most)
    model = Decoder(layers, kind).eval()
    compile_program(
        model, methods, recipe=recipe, states=states, max_length=limit
    ).save(path)


def fill(session: Session, tokens: np.ndarray, positions: int) -> None:
    """Prefill a session up to a number of positions."""
    while (at := int(session.position[0])) < positions:
        session.call("prefill", tokens[:, at : min(at + CHUNK, positions)])


def steps(
    sessions: Mapping[str, Session], tokens: np.ndarray, count: int
) -> tuple[dict[str, list[float]], float]:
    """Return the milliseconds of decode steps in turns, and how far logits differ."""
    times: dict[str, list[float]] = {kind: [] for kind in sessions}
    apart = 0.0
    for step in range(count):
        given = []
        for kind, session in sessions.items():
            begin = time.perf_counter()
            given.append(session.call("decode", tokens[:, step : step + 1]))
            times[kind].append((time.perf_counter() - begin) * 1e3)
            session.rewind(1)
        apart = max(apart, float(np.abs(given[0] - given[1]).max() / given[0].std()))
    return {kind: some[2:] for kind, some in times.items()}, apart


def report(
    positions: int,
    times: Mapping[str, Sequence[float]],
    nbytes: Mapping[str, int],
    apart: float,
) -> None:
    """Print one number of positions."""
    told = [
        f"{kind} {statistics.median(times[kind]):.2f} ({min(times[kind]):.2f}) ms, "
        f"{nbytes[kind] / 1e6:.1f} MB"
        for kind in KINDS
    ]
    sys.stdout.write(
        f"{positions:6} positions: {'; '.join(told)}; logits apart by {apart:.1e}\n"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="fp32")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--positions", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    most = max(options.positions) + 1
    tokens = np.random.default_rng(0).integers(0, VOCAB, (1, most + options.steps))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sessions = {}
        for kind in KINDS:
            path = Path(folder) / f"{kind}.kvc"
            compile_kind(kind, options.recipe, options.layers, most, path)
            program = stack.enter_context(load(path))
            sessions[kind] = stack.enter_context(program.session())
        for positions in sorted(options.positions):
            for session in sessions.values():
                fill(session, tokens, positions)
            times, apart = steps(sessions, tokens, options.steps + 2)
            nbytes = {k: s.residency().own or 0 for k, s in sessions.items()}
            report(positions, times, nbytes, apart)


if __name__ == "__main__":
    main()
