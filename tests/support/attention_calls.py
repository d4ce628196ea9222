"""Random calls of `kvc::attention`, and a reference that loops over queries."""

import itertools
import math
import random
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kvc.schema.torch_ops import attention


@dataclass
class Call:
    q: Tensor
    k: Tensor
    v: Tensor
    valid_length: Tensor
    scale: float | None = None
    causal: bool = True
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    mask: Tensor | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    layout: str = "linear"
    keep: int = 0

    def run(self) -> Tensor:
        return attention(**{f.name: getattr(self, f.name) for f in fields(self)})

    def slot(self, key: int) -> int:
        slots = self.k.shape[2]
        if key < self.keep:
            return key
        return self.keep + (key - self.keep) % (slots - self.keep)

    def in_range(self, row: int, query: int) -> list[int]:
        """Return the key positions that a query may see, before the mask hides any."""
        total, slots = int(self.valid_length[row]), self.k.shape[2]
        p = total - self.q.shape[2] + query
        last = total if self.mask is None else min(total, self.mask.shape[3])
        least = total - (slots - self.keep)
        if self.window_left is not None:
            least = max(least, p - self.window_left)
        ends = [p] if self.causal else []
        ends += [] if self.window_right is None else [p + self.window_right]
        most = min([last - 1, *ends])
        return [k for k in range(most + 1) if k < self.keep or k >= least]

    def bias(self, row: int, head: int, query: int, key: int) -> float:
        """Return the number added to a score; -inf if the mask hides the key."""
        p = int(self.valid_length[row]) - self.q.shape[2] + query
        bias = 0.0 if self.slopes is None else float(self.slopes[head]) * (key - p)
        if self.mask is not None:
            mask = self.mask.expand(len(self.q), self.q.shape[1], -1, -1)
            value = mask[row, head, query, key]
            if mask.dtype == torch.bool:
                return bias if value else -math.inf
            bias += float(value)
        return bias

    def poison_the_unseen(self) -> None:
        """Fill each slot with NaN that no query of the slot's row can see."""
        slots, seq = self.k.shape[2], self.q.shape[2]
        for row in range(len(self.q)):
            keys = {key for i in range(seq) for key in self.in_range(row, i)}
            unseen = sorted(set(range(slots)) - {self.slot(key) for key in keys})
            self.k[row, :, unseen] = math.nan
            self.v[row, :, unseen] = math.nan

    def expected(self) -> Tensor:
        shape = *self.q.shape[:3], self.v.shape[3]
        out = torch.zeros(shape, dtype=torch.float64)
        for place in itertools.product(*map(range, shape[:3])):
            out[place] = self._one(*place)
        return out.to(self.q.dtype)

    def _one(self, row: int, head: int, query: int) -> Tensor:
        of_group = head // (self.q.shape[1] // self.k.shape[1])
        k, v = (x[row, of_group].double() for x in (self.k, self.v))
        q = self.q[row, head, query].double()
        scale = 1 / math.sqrt(len(q)) if self.scale is None else self.scale
        scores, values = [], []
        for key in self.in_range(row, query):
            score = float(q @ k[self.slot(key)]) * scale
            if self.softcap is not None:
                score = self.softcap * math.tanh(score / self.softcap)
            scores.append(score + self.bias(row, head, query, key))
            values.append(v[self.slot(key)])
        if not values or max(scores) == -math.inf:
            return torch.zeros(v.shape[1], dtype=torch.float64)
        if self.sinks is not None:
            scores.append(float(self.sinks[head]))
            values.append(torch.zeros_like(values[0]))
        weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
        return weights @ torch.stack(values)


def some_mask(dice: random.Random, batch: int, heads: int, seq: int) -> Tensor:
    shape = (dice.choice((1, batch)), dice.choice((1, heads)), seq, dice.randint(1, 30))
    if dice.random() < 0.5:
        return torch.rand(shape) < 0.6
    return torch.randn(shape).masked_fill(torch.rand(shape) < 0.2, -math.inf)


def some_call(seed: int, dtype: torch.dtype) -> Call:
    dice = random.Random(seed)
    torch.manual_seed(seed)

    def perhaps(make, chance=0.35):
        return make() if dice.random() < chance else None

    batch, kv_heads, group = dice.choice((1, 1, 2, 3)), dice.randint(1, 3), 2
    heads = kv_heads * dice.choice((1, group))
    seq, slots = dice.choice((1, 1, 2, 3, 7)), dice.randint(1, 12)
    layout = dice.choice(("linear", "circular"))
    longest = slots if layout == "linear" else 3 * slots
    width, value_width = dice.choice(((8, 8), (8, 8), (4, 6)))
    return Call(
        torch.randn(batch, heads, seq, width).to(dtype),
        torch.randn(batch, kv_heads, slots, width).to(dtype),
        torch.randn(batch, kv_heads, slots, value_width).to(dtype),
        torch.tensor([dice.randint(0, longest) for _ in range(batch)]),
        scale=perhaps(lambda: 0.7),
        causal=dice.random() < 0.7,
        window_left=perhaps(lambda: dice.randint(0, 6)),
        window_right=perhaps(lambda: dice.randint(0, 4)),
        softcap=perhaps(lambda: 1.5, 0.2),
        mask=perhaps(lambda: some_mask(dice, batch, heads, seq)),
        slopes=perhaps(lambda: torch.rand(heads), 0.2),
        sinks=perhaps(lambda: torch.randn(heads).to(dtype), 0.2),
        layout=layout,
        keep=dice.randint(0, slots - 1) if layout == "circular" else 0,
    )
