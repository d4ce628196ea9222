"""Which keys the queries of one row see, as ranges of positions, and their scores.

In: the row's length, the stored positions, causality and windows. Out: blocks of
queries, each with the ranges (runs) of key positions that any query of the block sees.
Positions count from the row's first token; `kvc.schema.rings` maps them to slots.
`Scoring` has the scale, soft cap, masks and slopes of the row, and applies them to the
scores of a block.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from kvc.schema.frozen import frozen
from kvc.schema.rings import slot_runs

# Smaller blocks of queries cost more in calls than they save in keys.
MIN_BLOCK = 128


class Run(NamedTuple):
    """The keys that a block of queries reads at positions from `begin` to before `end`.

    Query i of the block sees key `begin + j` if `lower <= j - i <= upper`; a bound of
    None hides no key.
    """

    begin: int
    end: int
    lower: int | None
    upper: int | None

    @property
    def keys(self) -> int:
        """Return the number of keys in the run."""
        return self.end - self.begin

    @property
    def is_seen(self) -> bool:
        """Tell whether every query of the block sees every key of the run."""
        return self.lower is None and self.upper is None

    def band(self, count: int, device: torch.device) -> Tensor:
        """Return bool [count, keys]: whether query i of `count` queries sees key j."""
        seen = torch.ones(count, self.keys, dtype=torch.bool, device=device)
        if self.upper is not None:
            seen = seen.tril_(self.upper)
        if self.lower is not None:
            seen = seen.triu_(self.lower)
        return seen


@frozen
class Block:
    """Queries of a row, from `first` to before `first + count`, and the keys they read.

    `position` is the position of query `first`; `runs` are the keys, ordered by
    position; `keep` is the number of first positions that the cache never overwrites.
    """

    first: int
    count: int
    position: int
    runs: tuple[Run, ...]
    keep: int

    @property
    def keys(self) -> int:
        """Return the number of keys that the block reads."""
        return sum([run.keys for run in self.runs])

    @property
    def sees_all(self) -> bool:
        """Tell whether every query sees every key of the block."""
        return all(run.is_seen for run in self.runs)

    @property
    def is_square(self) -> bool:
        """Tell whether query i sees exactly the keys 0 to i: torch's causal mask."""
        run, *others = self.runs
        causal = run.lower is None and run.upper == 0 and not others
        return causal and self.count == run.keys

    def places(self, slots: int) -> list[tuple[int, int]]:
        """Return the slots of the block's keys in a ring of `slots` slots.

        The result has pairs (first slot, number of slots).
        """
        runs, keep = self.runs, self.keep
        return [p for r in runs for p in slot_runs(r.begin, r.keys, slots, keep)]

    def pick(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the part of a tensor at the block's keys.

        The axis `dim` of the tensor has all positions.
        """
        return _joined(
            [tensor.narrow(dim, run.begin, run.keys) for run in self.runs], dim
        )

    def band(self, device: torch.device) -> Tensor | None:
        """Return bool [count, keys]: whether a query sees a key.

        The result is None if every query sees every key.
        """
        if self.sees_all:
            return None
        return _joined([run.band(self.count, device) for run in self.runs], 1)

    def distances(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return [count, keys]: the key's position minus the query's position."""
        spans = [(r.begin - self.position, r.end - self.position) for r in self.runs]
        keys = [torch.arange(*span, dtype=dtype, device=device) for span in spans]
        queries = torch.arange(self.count, dtype=dtype, device=device)
        return _joined(keys, 0) - queries[:, None]


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim)


@frozen
class RowVisibility:
    """Which keys the `seq` queries of a row see.

    Query i has position `start + i`. The query at position s sees the key at position p
    if `oldest <= p < end` and `s - left <= p <= s + ahead`; `left` or `ahead` can be
    None, for no bound. The query also sees each of the first `keep` keys of the row,
    which lie before `oldest`, if `p < end` and `p <= s + ahead`.
    """

    seq: int
    start: int
    oldest: int
    end: int
    left: int | None
    ahead: int | None
    keep: int = 0

    @property
    def keys(self) -> int:
        """Return the number of stored keys."""
        return max(0, self.end - self.oldest) + min(self.keep, self.end)

    def seeing(self) -> range:
        """Return the range of the queries that see at least one key."""
        oldest = 0 if self.keep else self.oldest
        if oldest >= self.end:
            return range(0)
        first, last = 0, self.seq
        if self.ahead is not None:
            first = max(first, oldest - self.ahead - self.start)
        if self.left is not None and not self.keep:
            last = min(last, self.end + self.left - self.start)
        return range(first, max(first, last))

    def block(self, first: int, count: int) -> Block:
        """Return the block of `count` queries from `first` on; each sees a key."""
        here, begin, end = self.start + first, self.oldest, self.end
        lower = None
        if self.ahead is not None:
            end = min(end, here + count + self.ahead)
        if self.left is not None:
            begin = max(begin, here - self.left)
            if here + count - 1 - self.left > begin:
                lower = here - self.left - begin
        kept = min(self.keep, end)
        if begin == kept and lower is None:
            begin = kept = 0  # no key between them is hidden
        runs = [self._run(here, 0, kept, None)] if kept else []
        if begin < end:
            runs.append(self._run(here, begin, end, lower))
        return Block(first, count, here, tuple(runs), self.keep)

    def _run(self, here: int, begin: int, end: int, lower: int | None) -> Run:
        """Return the keys from `begin` to before `end`, as a run of a block.

        Args:
            here: the position of the block's first query.
            begin: the first position of the keys.
            end: the position after the last key.
            lower: the lower bound of the run.
        """
        upper = None
        if self.ahead is not None and here + self.ahead + 1 < end:
            upper = here + self.ahead - begin
        return Run(begin, end, lower, upper)

    def blocks(self, cells: int) -> Iterator[Block]:
        """Yield blocks of the queries that see a key.

        A block has at most `cells` pairs of a query and a key, or a single query.
        """
        queries = self.seeing()
        if not queries:
            return
        count = self._count_queries(len(queries), cells)
        for first in range(queries.start, queries.stop, count):
            yield self.block(first, min(count, queries.stop - first))

    def _count_queries(self, seeing: int, cells: int) -> int:
        """Return the number of queries in a block.

        If a window bounds the keys on both sides, a block of n queries reads `n +
        reach` keys, where `reach` is a constant. The result is then the largest n with
        `n * (n + reach) <= cells`, or less if most pairs of a query and a key would lie
        outside the window.
        """
        count = cells // self.keys
        if self.left is not None and self.ahead is not None:
            reach = self.left + self.ahead + self.keep
            if reach < self.keys:
                fitting = (math.isqrt(reach * reach + 4 * cells) - reach) // 2
                count = min(max(count, fitting), max(MIN_BLOCK, reach))
        return max(1, min(count, seeing))


@frozen
class Scoring:
    """How products of queries and keys become scores.

    The fields are arguments of `attention`.
    """

    scale: float | None
    softcap: float | None
    mask: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None

    def of_row(self, row: int) -> "Scoring":
        """Return the scoring of a batch row, with only the row's part of the mask."""
        if self.mask is None or self.mask.shape[0] == 1:
            return self
        return replace(self, mask=self.mask.narrow(0, row, 1))

    @property
    def is_plain(self) -> bool:
        """Tell whether scores are scaled products, except -inf for hidden keys."""
        products = self.softcap is None and self.slopes is None and self.sinks is None
        return products and (self.mask is None or self.mask.dtype == torch.bool)

    @property
    def is_bare(self) -> bool:
        """Tell whether scores are scaled products, and no mask hides a key."""
        return self.mask is None and self.is_plain

    def seen(self, block: Block) -> Tensor | None:
        """Return which keys of a block each query sees, by window and bool mask.

        The result is bool [count, keys] or [1, heads or 1, count, keys], or None if
        every query sees all keys. A float mask does not count; `adjust_` applies it.
        """
        if self.mask is None:
            return block.band(torch.device("cpu"))
        band = block.band(self.mask.device)
        if self.mask.dtype != torch.bool:
            return band
        mask = _part_of(self.mask, block)
        return mask if band is None else mask & band

    def adjust_(self, scores: Tensor, block: Block) -> None:
        """Apply soft cap, slopes and masks in place to scores [heads, count, keys]."""
        dtype, device = scores.dtype, scores.device
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.slopes is not None:
            slopes = self.slopes.to(dtype)[:, None, None]
            scores.addcmul_(slopes, block.distances(dtype, device))
        if self.mask is not None and self.mask.dtype != torch.bool:
            scores.add_(_part_of(self.mask, block)[0].to(dtype))
        seen = self.seen(block)
        if seen is not None:
            hidden = seen.logical_not().reshape(-1, block.count, block.keys)
            scores.masked_fill_(hidden, -torch.inf)


def _part_of(mask: Tensor, block: Block) -> Tensor:
    """Return the part of a row's mask for a block, [1, heads or 1, count, keys]."""
    return block.pick(mask.narrow(2, block.first, block.count), 3)
