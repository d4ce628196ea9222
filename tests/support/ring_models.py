"""Decoders that keep a window of their past in rings, and a reference that keeps all.

The reference computes a whole text at once, with a mask of the window: logits float32
[batch, seq, vocab] of tokens int64 [batch, seq]. Positions are encoded as cosines, so
that a text may have any length.
"""

from dataclasses import dataclass

import numpy as np
import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method, StateSpec

VOCAB, WIDTH, HEADS, KV_HEADS = 19, 8, 4, 2


@dataclass(frozen=True)
class Shape:
    # for each layer how many positions it sees, None: all
    windows: tuple[int | None, ...] = (5, 5)
    slots: int = 12  # of each ring
    length: int = 64  # the most positions of a layer that sees all
    rows: int = 1  # the most rows of a batch
    keep: int = 0  # how many of the first positions each ring keeps

    @property
    def longest(self) -> int:
        """Return the most tokens of a call; more would overwrite a query's window."""
        return self.slots - self.keep - max(w for w in self.windows if w) + 1


class Layer(nn.Module):
    """A layer of a decoder: attention over a window, and a perceptron."""

    def __init__(self, window: int | None, slots: int, keep: int) -> None:
        super().__init__()
        dim = HEADS * WIDTH
        self.window, self.keep = window, 0 if window is None else keep
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * KV_HEADS * WIDTH)
        self.out, self.up = nn.Linear(dim, dim), nn.Linear(dim, dim)
        for name in ("keys", "values"):
            zeros = torch.zeros(1, KV_HEADS, slots, WIDTH)
            self.register_buffer(name, zeros, persistent=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: [batch, heads, seq, width] each."""
        k, v = self.kv(x).chunk(2, -1)
        parts = zip((self.q(x), k, v), (HEADS, KV_HEADS, KV_HEADS), strict=True)
        q, k, v = (p.unflatten(-1, (n, WIDTH)).transpose(1, 2) for p, n in parts)
        return q, k, v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + torch.tanh(self.up(x))

    def forward(self, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
        q, k, v = self.project(x)
        mode = "linear" if self.window is None else "circular"
        ops = torch.ops.kvc
        kept = {"mode": mode, "keep": self.keep}
        self.keys.copy_(ops.cache_update(self.keys, k, start, 2, **kept))
        self.values.copy_(ops.cache_update(self.values, v, start, 2, **kept))
        left = None if self.window is None else self.window - 1
        attended = ops.attention(
            q, self.keys, self.values, end,
            window_left=left, layout=mode, keep=self.keep,
        )  # fmt: skip
        return self.finish(x, attended)

    def reference(self, x: Tensor, rounded: bool) -> Tensor:
        q, k, v = self.project(x)
        if rounded:
            k, v = (_as_int8(part) for part in (k, v))
        places = torch.arange(x.shape[1])
        back = places[:, None] - places
        seen = back >= 0
        if self.window is not None:
            seen &= (back < self.window) | (places < self.keep)
        attended = functional.scaled_dot_product_attention(
            q, k, v, seen, enable_gqa=True
        )
        return self.finish(x, attended)


class RingDecoder(Buffers, position=ZERO):
    """A decoder; `prefill` and `decode` return the last logits, `score` all logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        torch.manual_seed(3)
        dim = HEADS * WIDTH
        self.embed, self.head = nn.Embedding(VOCAB, dim), nn.Linear(dim, VOCAB)
        self.layers = nn.ModuleList(
            Layer(window, shape.length if window is None else shape.slots, shape.keep)
            for window in shape.windows
        )
        turns = torch.rand(dim) * 0.7
        self.register_buffer("turns", turns, persistent=False)

    def prefill(self, tokens: Tensor) -> Tensor:
        return self.score(tokens)[:, -1]

    def decode(self, token: Tensor) -> Tensor:
        return self.score(token)[:, -1]

    def score(self, tokens: Tensor) -> Tensor:
        start, seq = self.position.clone(), tokens.shape[1]
        places = start[:, None] + torch.arange(seq)
        x = self.embed(tokens) + torch.cos(places[..., None] * self.turns)
        for layer in self.layers:
            x = layer(x, start, start + seq)
        self.position.add_(seq)
        return self.head(x)

    @torch.no_grad()
    def reference(self, tokens: np.ndarray, rounded: bool = False) -> np.ndarray:
        """Return the logits of a whole text; `rounded`: keys and values as in int8."""
        given = torch.from_numpy(tokens)
        places = torch.arange(given.shape[1])
        x = self.embed(given) + torch.cos(places[:, None] * self.turns)
        for layer in self.layers:
            x = layer.reference(x, rounded)
        return self.head(x).numpy()


def ring_methods(longest: int, rows: int = 1) -> list[Method]:
    """Return methods `prefill`, `decode` and `score`, for up to `longest` tokens."""
    two = torch.zeros(1, 2, dtype=torch.int64)
    batch = {0: Dim("batch", 1, rows)} if rows > 1 else {}
    sizes = {1: Dim("seq", 1, longest), **batch}
    some, one = {"tokens": sizes}, {"token": batch} if batch else {}
    return [
        Method("prefill", args=(two,), dynamic=some, role="prefill"),
        Method("decode", args=(two[:, :1],), dynamic=one, role="decode"),
        Method("score", args=(two,), dynamic=some),
    ]


def ring_states(shape: Shape) -> tuple[StateSpec, ...]:
    """Return which states have rows of a batch; none if the model has one row."""
    if shape.rows == 1:
        return ()
    rows = Dim("batch", 1, shape.rows)
    return (StateSpec("layers.*", batch=rows), StateSpec("position", batch=rows))


def text(length: int, rows: int = 1, seed: int = 0) -> np.ndarray:
    """Return random tokens int64 [rows, length]."""
    return np.random.default_rng(seed).integers(0, VOCAB, (rows, length))


def _as_int8(x: Tensor) -> Tensor:
    """Return rows x [..., width] rounded as int8 rows are, without kvc's code."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale) * scale
