"""Caches of every kind whose slots are so wide that a page of memory has only a few.

The models take rows float32 [1, 3, seq, 64], one for each token, and keep them. All 64
elements of a row are equal: 4 n + h + 1 for token n and head h. So the expected content
of each state follows from the tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn

from kvc.compiler import Dim, Method

SLOTS, HEADS, WIDTH, PLACES = 256, 3, 64, 499


def rows_of(tokens: Sequence[int]) -> np.ndarray:
    numbers = np.array(tokens, np.float32)[None, None, :, None]
    heads = np.arange(HEADS, dtype=np.float32)[None, :, None, None]
    return np.repeat(numbers * 4 + heads, WIDTH, axis=3) + 1


def _cache(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(1, HEADS, SLOTS, WIDTH, dtype=dtype)


_SCALE = torch.zeros(1, HEADS, SLOTS)
_INT8 = {"int8": _cache(torch.int8), "scale": _SCALE}


class Cached(Buffers, cache=_cache(), branch=_cache(), **_INT8, position=ZERO):
    """Keeps rows in three caches: as they are, as int8, and written in two branches."""

    def write(self, rows: Tensor, left: Tensor) -> Tensor:
        """Write the rows; `left` says which branch writes one of the caches.

        Both branches write the same.
        """
        update, start = torch.ops.kvc.cache_update, self.position.clone()
        self.cache.copy_(update(self.cache, rows, start))
        steps, scale = torch.ops.kvc.quantize_cache(rows)
        self.int8.copy_(update(self.int8, steps, start))
        self.scale.copy_(update(self.scale, scale, start, 2))

        def one(held: Tensor, rows: Tensor) -> Tensor:
            return torch.ops.kvc.cache_update(held, rows, start)

        def other(held: Tensor, rows: Tensor) -> Tensor:
            return torch.ops.kvc.cache_update(held, rows * 2 - rows, start)

        self.branch.copy_(torch.cond(left, one, other, (self.branch, rows)))
        self.position.add_(rows.shape[2])
        return rows + 0

    @staticmethod
    def held(tokens: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the expected content of each state after these tokens.

        Caches have only the slots that were written.
        """
        rows = rows_of(tokens)
        return {
            "cache": rows,
            "branch": rows,
            "int8": np.full(rows.shape, 127, np.int8),
            "scale": rows[..., 0] / 127,
        }


class Plain(Cached, table=torch.zeros(PLACES, WIDTH), last=torch.zeros(WIDTH)):
    """Also writes rows into a table, and keeps the last row."""

    def write(self, rows: Tensor, left: Tensor) -> Tensor:
        """Write the rows of up to 64 tokens whose places in the table differ."""
        places = (rows[0, 0, :, 0].long() // 4) % PLACES
        self.table.index_put_((places,), rows[0, 0])
        self.last.copy_(rows[0, 0, -1])
        return super().write(rows, left)

    @staticmethod
    def held(tokens: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the expected content of each state after these tokens.

        Caches have only the slots that were written.
        """
        table = np.zeros((PLACES, WIDTH), np.float32)
        last = np.zeros(WIDTH, np.float32)
        for token, row in zip(tokens, rows_of(tokens)[0, 0], strict=True):
            table[token % PLACES] = last = row
        return {**Cached.held(tokens), "table": table, "last": last}


class Grown(nn.Module):
    """Keeps rows in two states that grow by `torch.cat`, one of them in a branch."""

    def write(self, rows, past, other, left) -> dict[str, Tensor]:
        """Append rows to `past` and `other`, float32 [1, 3, length, 64]."""

        def one(other: Tensor, rows: Tensor) -> Tensor:
            return torch.cat([other, rows], 2)

        def two(other: Tensor, rows: Tensor) -> Tensor:
            return torch.cat([other, rows * 2 - rows], 2)

        return {
            "past": torch.cat([past, rows], 2),
            "other": torch.cond(left, one, two, (other, rows)),
        }

    @staticmethod
    def held(tokens: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the expected content of both states after these tokens."""
        return {"past": rows_of(tokens), "other": rows_of(tokens)}


SEQ, PAST = Dim("seq", 1, 64), Dim("past", 0, SLOTS)


def cached_method() -> Method:
    """Return the method of `Cached` and `Plain` to compile."""
    rows = torch.ones(1, HEADS, 2, WIDTH)
    return Method("write", args=(rows, torch.tensor(True)), dynamic={"rows": {2: SEQ}})


def grown_method() -> Method:
    """Return the method of `Grown` to compile."""
    rows, past = torch.ones(1, HEADS, 2, WIDTH), torch.ones(1, HEADS, 3, WIDTH)
    return Method(
        "write",
        args=(rows, past, past * 2, torch.tensor(True)),
        dynamic={"rows": {2: SEQ}, "past": {2: PAST}, "other": {2: PAST}},
        carry={"past": "past", "other": "other"},
    )
