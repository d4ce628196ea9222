"""Decoders whose rows bring different numbers of tokens to a call.

Each has a reference without any cache: logits [seq, vocab] of one row's tokens. Models
have two layers, so that padding would show if it got into the second layer's cache.
Models that differ only in how they write a cache have one.

`prefill` takes tokens int64 [batch, seq] and `lengths` int64 [batch], the number of
tokens that count in each row. `decode` takes one token for each row, and bool [batch]:
which rows take part. Both return the logits after each row's last token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
from held_buffers import ZERO, Buffers
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec
from kvc.runtime import Program

VOCAB, DIM, HEADS, KV_HEADS, WIDTH = 16, 16, 4, 2, 4
SLOTS, WINDOW, RING, KEPT = 64, 6, 17, 3
MOST = 200  # positions where there are rings alone
BATCH, SEQ = Dim("batch", 1, 4), Dim("seq", 1, 40)
CAPACITY = Dim("capacity", 4, SLOTS)


class RaggedLayer(nn.Module):
    """One layer: rotary attention over a cache, and a residual connection."""

    mode, window, slots, keep = "linear", None, SLOTS, 0

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * WIDTH)
        self.out = nn.Linear(DIM, DIM)
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(1, KV_HEADS, self.slots, WIDTH))

    def forward(self, x: Tensor, start: Tensor, row_lengths: Tensor) -> Tensor:
        q, k, v = self.project(x, start)
        self.write(k, v, start, row_lengths)
        y = torch.ops.kvc.attention(
            q, self.k, self.v, start + row_lengths,
            window_left=None if self.window is None else self.window - 1,
            layout=self.mode, row_lengths=row_lengths, keep=self.keep,
        )  # fmt: skip
        return x + self.out(y.transpose(1, 2).reshape(x.shape))

    def write(self, k: Tensor, v: Tensor, start: Tensor, row_lengths: Tensor) -> None:
        update = torch.ops.kvc.cache_update
        told = -2, self.mode, row_lengths, self.keep
        self.k.copy_(update(self.k, k, start, *told))
        self.v.copy_(update(self.v, v, start, *told))

    def project(self, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, seq, _ = x.shape
        heads = self.qkv(x).view(batch, seq, -1, WIDTH).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        places = start[:, None] + torch.arange(seq)
        return turned(q, places), turned(k, places), v

    def reference(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x, torch.zeros(1, dtype=torch.int64))
        scores = q @ k.repeat_interleave(HEADS // KV_HEADS, 1).transpose(2, 3) / 2
        places = torch.arange(x.shape[1])
        ago = places[:, None] - places
        near = (ago < (self.window or SLOTS)) | (places < self.keep)
        seen = (ago >= 0) & near
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        y = weights @ v.repeat_interleave(HEADS // KV_HEADS, 1)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class RingLayer(RaggedLayer):
    """A layer whose cache is a ring; a query sees the last `WINDOW` positions."""

    mode, window, slots = "circular", WINDOW, RING


class KeptLayer(RingLayer):
    """A layer whose ring also keeps the first positions, which each query sees."""

    slots, keep = RING + KEPT, KEPT


class BranchingLayer(RaggedLayer):
    """A layer that writes its cache in both branches of a condition.

    The branches differ only in the order of their writes.
    """

    def write(self, k: Tensor, v: Tensor, start: Tensor, row_lengths: Tensor) -> None:
        def update(old: Tensor, new: Tensor) -> Tensor:
            ops = torch.ops.kvc
            return ops.cache_update(old, new, start, row_lengths=row_lengths)

        def first_keys(old_k, old_v, k, v) -> tuple[Tensor, Tensor]:
            new_k = update(old_k, k)
            return new_k, update(old_v, v)

        def first_values(old_k, old_v, k, v) -> tuple[Tensor, Tensor]:
            new_v = update(old_v, v)
            return update(old_k, k), new_v

        operands = (self.k, self.v, k.clone(), v.clone())
        new_k, new_v = torch.cond(k.sum() > 0, first_keys, first_values, operands)
        self.k.copy_(new_k)
        self.v.copy_(new_v)


class Ragged(Buffers, position=ZERO):
    """A decoder that counts its rows' tokens in a state, int64 [batch]."""

    layer: type[RaggedLayer] = RaggedLayer
    depth = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(self.layer() for _ in range(self.depth))

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        start = self.position.clone()
        self.position.add_(lengths)
        return self.run(tokens, start, lengths)

    def decode(self, token: Tensor, active: Tensor) -> Tensor:
        row_lengths = active.to(torch.int64)
        start = self.position.clone()
        self.position.add_(row_lengths)
        return self.run(token, start, row_lengths)

    def run(self, tokens: Tensor, start: Tensor, row_lengths: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, start, row_lengths)
        last = (row_lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, DIM)
        return x.gather(1, last)[:, 0] @ self.embed.weight.T

    def reference(self, tokens: Tensor) -> Tensor:
        """Return the logits [seq, vocab] of one row's tokens int64 [seq]."""
        x = self.embed(tokens[None])
        for layer in self.layers:
            x = layer.reference(x)
        return x[0] @ self.embed.weight.T


class RaggedBranches(Ragged):
    layer, depth = BranchingLayer, 1


class RaggedRings(Ragged):
    layer = RingLayer


class RaggedKept(RaggedRings):
    layer, depth = KeptLayer, 1


class RaggedWhereTold(Ragged):
    """A decoder whose position is an input, int64 [batch], which the session gives."""

    depth = 1

    def __init__(self) -> None:
        super().__init__()
        del self.position

    def prefill(self, tokens: Tensor, lengths: Tensor, input_pos: Tensor) -> Tensor:
        return self.run(tokens, input_pos, lengths)

    def decode(self, token: Tensor, active: Tensor, input_pos: Tensor) -> Tensor:
        return self.run(token, input_pos, active.to(torch.int64))


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Rotate x [batch, heads, seq, WIDTH] by its positions int64 [batch, seq]."""
    angles = places[:, None, :, None] * torch.tensor([1.0, 0.1])
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def ragged_methods(told: bool = False) -> list[Method]:
    """Return the methods of `Ragged`, or with `told` of `RaggedWhereTold`."""
    tokens = torch.ones(3, 5, dtype=torch.int64)
    rows = torch.zeros(3, dtype=torch.int64)
    place = {"position": "input_pos"} if told else {}
    fed = (rows,) if told else ()
    sizes = {"input_pos": {0: BATCH}} if told else {}
    counted = {"lengths": {0: BATCH}, **sizes}
    some = {"tokens": {0: BATCH, 1: SEQ}, **counted}
    one = {"token": {0: BATCH}, "active": {0: BATCH}, **sizes}
    chunk, token = (tokens, rows + 5, *fed), (tokens[:, :1], rows == 0, *fed)
    return [
        Method("prefill", args=chunk, dynamic=some, role="prefill", **place),
        Method("decode", args=token, dynamic=one, role="decode", **place),
    ]


def ragged_specs(told: bool = False, rings: bool = False) -> list[StateSpec]:
    """Return which states of `Ragged` have rows of a batch, and which a capacity.

    `told`: for `RaggedWhereTold`. `rings`: caches are rings, which have no capacity.
    """
    caches = StateSpec("layers.*.[kv]", axis=2, capacity=CAPACITY, batch=BATCH)
    if rings:
        caches = StateSpec("layers.*.[kv]", batch=BATCH)
    return [caches] if told else [caches, StateSpec("position", batch=BATCH)]


RAGGED: dict[str, type[Ragged]] = {
    "state": Ragged,
    "told": RaggedWhereTold,
    "branches": RaggedBranches,
    "rings": RaggedRings,
    "kept rings": RaggedKept,
    "xnnpack": Ragged,
}


@cache
def alone(model: type[Ragged], tokens: tuple[int, ...]) -> np.ndarray:
    """Return the reference's logits [vocab] after one row's tokens."""
    with torch.no_grad():
        return _made(model).reference(torch.tensor(tokens))[-1].numpy()


@cache
def _made(model: type[Ragged]) -> Ragged:
    return model()


@contextmanager
def opened_ragged(kind: str, folder: Path) -> Iterator[Program]:
    """Compile one of `RAGGED` into a folder, and open it."""
    told, rings = kind == "told", "rings" in kind
    with opened(
        RAGGED[kind](),
        ragged_methods(told),
        folder,
        states=ragged_specs(told, rings),
        recipe="xnnpack_fp32" if kind == "xnnpack" else "fp32",
        max_length=MOST if rings else None,
    ) as program:
        yield program
