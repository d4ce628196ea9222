"""Which keys the queries of one row see: ranges and diagonals, in plain numbers.

In: the row's length, the slots that are there, causality and windows. Out: blocks of
queries, each with the range of key positions that any of them sees. All positions
count from the row's first token; where they lie in memory is left to others.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Smaller blocks of queries cost more in calls than they save in keys.
MIN_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Block:
    """Queries `first` to `first + count`, keys at positions `begin` to `end`.

    Query `first + i` sees key `begin + j` where `lower <= j - i <= upper`; None is a
    bound that hides no key of the block. `offset` is the distance `j - i` of equal
    positions, so that a key lies `j - i - offset` positions after its query.
    """

    first: int
    count: int
    begin: int
    end: int
    lower: int | None
    upper: int | None
    offset: int

    @property
    def keys(self) -> int:
        """How many keys the block reads."""
        return self.end - self.begin

    @property
    def sees_all(self) -> bool:
        """Every query sees every key of the block."""
        return self.lower is None and self.upper is None

    @property
    def is_square(self) -> bool:
        """Query i sees the keys 0 to i: what torch calls causal."""
        return self.lower is None and self.upper == 0 and self.count == self.keys

    def band(self, device: torch.device) -> Tensor | None:
        """Return bool [count, keys], True where a query sees a key; None: all True."""
        if self.sees_all:
            return None
        seen = torch.ones(self.count, self.keys, dtype=torch.bool, device=device)
        if self.upper is not None:
            seen = seen.tril_(self.upper)
        if self.lower is not None:
            seen = seen.triu_(self.lower)
        return seen

    def distances(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return [count, keys]: each key's position less each query's."""
        keys = torch.arange(self.keys, dtype=dtype, device=device)
        queries = torch.arange(self.count, dtype=dtype, device=device)
        return keys - (queries + self.offset)[:, None]


@dataclass(frozen=True, slots=True)
class Sight:
    """What the `seq` queries of a row see; query i has position `start + i`.

    A key at position p is seen by the query at position s where
    `oldest <= p < end` and `s - left <= p <= s + ahead`; None is no bound.
    """

    seq: int
    start: int
    oldest: int
    end: int
    left: int | None
    ahead: int | None

    def seeing(self) -> range:
        """Return the queries that have a key in their range."""
        if self.oldest >= self.end:
            return range(0)
        first, last = 0, self.seq
        if self.ahead is not None:
            first = max(first, self.oldest - self.ahead - self.start)
        if self.left is not None:
            last = min(last, self.end + self.left - self.start)
        return range(first, max(first, last))

    def block(self, first: int, count: int) -> Block:
        """Return the block of `count` queries from `first` on, each of which sees."""
        here = self.start + first
        begin, end = self.oldest, self.end
        lower = upper = None
        if self.left is not None:
            begin = max(begin, here - self.left)
            if here + count - 1 - self.left > begin:
                lower = here - self.left - begin
        if self.ahead is not None:
            end = min(end, here + count + self.ahead)
            if here + self.ahead + 1 < end:
                upper = here + self.ahead - begin
        return Block(first, count, begin, end, lower, upper, here - begin)

    def blocks(self, cells: int) -> Iterator[Block]:
        """Yield blocks of at most `cells` pairs of query and key, or of one query."""
        queries = self.seeing()
        if not queries:
            return
        count = self._count_queries(len(queries), cells)
        for first in range(queries.start, queries.stop, count):
            yield self.block(first, min(count, queries.stop - first))

    def _count_queries(self, seeing: int, cells: int) -> int:
        """Return how many queries a block takes.

        A block of n queries reads `n + reach` keys when both sides are bounded: the
        largest n with `n * (n + reach) <= cells`, but not so many that most of the
        pairs lie outside the window.
        """
        count = cells // (self.end - self.oldest)
        if self.left is not None and self.ahead is not None:
            reach = self.left + self.ahead
            if reach < self.end - self.oldest:
                fitting = (math.isqrt(reach * reach + 4 * cells) - reach) // 2
                count = min(max(count, fitting), max(MIN_BLOCK, reach))
        return max(1, min(count, seeing))
