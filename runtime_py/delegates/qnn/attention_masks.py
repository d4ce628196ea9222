"""What queries see of a cache, as numbers: the host's part of attention.

In: the operands of `kvc::attention`, and of the `kvc::cache_update` that writes its
keys, as arrays of the host. Out: a number to add to each score, which hides what a
query does not see, and which slots of the old content are seen at all. The device gets
the old content and the new rows side by side, so columns are first the slots, then the
new rows. Which position lies in a slot is the same question for both.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.delegates.host_checks import Read, Writes, count_of
from kvc.runtime.delegates.qnn.emitting import NotTaken
from kvc.runtime.delegates.qnn.fixed_emitting import grid_of
from kvc.runtime.delegates.qnn.ranges import HIDING, LARGEST_BIAS, reach_of
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.grids import Grid
from kvc.schema.backends.qnn_fixed import Grids
from kvc.schema.frozen import frozen
from kvc.schema.rings import oldest, slot_runs

HIDDEN: Final = -60000.0  # added to a score of float16: its exponential is 0

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@frozen
class Sight:
    """The arguments of an attention that say what is seen; tensors are values.

    Attributes:
        batch, queries, slots: sizes.
        heads: how many see differently: 1 where all see alike.
        total: how many positions the cache holds afterwards, int64 [batch].
        lengths: how many queries count, int64 [batch]; None for all.
        causal, left, right, ring, keep: as of `kvc::attention`.
        mask: bool or float32 [batch or 1, heads or 1, queries, positions], or None.
        slopes: float32 [heads], or None.
        writes: of the update whose result is attended to; None without one.
    """

    batch: int
    heads: int
    queries: int
    slots: int
    total: int
    lengths: int | None
    causal: bool
    left: int | None
    right: int | None
    ring: bool
    keep: int
    mask: int | None
    slopes: int | None
    writes: Writes | None

    @property
    def columns(self) -> int:
        """How many keys there are: slots, then new rows."""
        return self.slots + (self.writes.rows if self.writes else 0)

    @property
    def bias_shape(self) -> tuple[int, int, int, int]:
        """The shape of what is added to scores, [batch, heads, queries, keys]."""
        return self.batch, self.heads, self.queries, self.columns

    def measure(self, read: Read) -> tuple[Floats, Floats, Bools]:
        """Return what a call sees.

        Returns:
            bias, float32 of `bias_shape`; seeing, float32 of that shape with one
            column, 1 for queries that see something and 0 for others; kept, bool
            [batch, slots], which slots of the old content anything sees.

        Raises:
            IndexOutOfRange, CacheOverflow, RowLengthOutOfRange, ValueError: lengths or
                positions do not fit.
        """
        bias = np.zeros(self.bias_shape, np.float32)
        seen = np.empty(self.bias_shape, bool)
        for row in range(self.batch):
            self._measure_row(read, row, bias[row], seen[row])
        np.clip(bias, -LARGEST_BIAS, LARGEST_BIAS, out=bias)
        bias[~seen] = HIDDEN
        seeing: Floats = np.any(seen, axis=-1, keepdims=True).astype(np.float32)
        kept: Bools = np.any(seen[..., : self.slots], axis=(1, 2))
        return bias, seeing, kept

    def _measure_row(self, read: Read, row: int, bias: Floats, seen: Bools) -> None:
        total = int(read(self.total)[row])
        if total < 0 or not (self.ring or total <= self.slots):
            raise ValueError(f"valid length {total} of {self.slots} slots")
        count = count_of(read, self.lengths, self.queries, row)
        at = self._positions(read, row, total)
        queries = total - count + np.arange(self.queries)
        seen[:] = self._allowed(queries, at, count)
        if self.slopes is not None:
            slopes: Floats = read(self.slopes).astype(np.float32)
            bias += slopes[:, None, None] * (at - queries[:, None])
        if self.mask is not None:
            _apply(read(self.mask), row, at, bias, seen)

    def _positions(self, read: Read, row: int, total: int) -> Integers:
        """Return which position lies in each column; -1 for none."""
        at = np.full(self.slots, -1, np.int64)
        if not self.ring:
            at[:total] = np.arange(total)
        else:
            for first, end in self._held(total):
                done = first
                for slot, count in slot_runs(
                    first, max(0, end - first), self.slots, self.keep
                ):
                    at[slot : slot + count] = np.arange(done, done + count)
                    done += count
        if self.writes is None:
            return at
        new = np.full(self.writes.rows, -1, np.int64)
        for first, slot, count in self.writes.runs(read, row):
            new[first : first + count] = at[slot : slot + count]
            at[slot : slot + count] = -1
        return np.concatenate([at, new])

    def _held(self, total: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the positions that a ring holds: kept ones, and the last."""
        first = oldest(total, self.slots, self.keep)
        return (0, min(self.keep, total)), (first, total)

    def _allowed(self, queries: Integers, at: Integers, count: int) -> Bools:
        """Return bool [queries, columns]: what position, window and length allow."""
        distance = at[None, :] - queries[:, None]
        allowed: Bools = np.broadcast_to(at >= 0, distance.shape).copy()
        ahead = 0 if self.causal else self.right
        if ahead is not None:
            allowed &= distance <= ahead
        if self.left is not None:
            allowed &= (distance >= -self.left) | (at < self.keep)
        allowed[count:] = False
        return allowed


def _apply(mask: Array, row: int, at: Integers, bias: Floats, seen: Bools) -> None:
    """Hide or add what a mask says of the positions in columns."""
    own = mask[min(row, mask.shape[0] - 1)]  # [heads or 1, queries, positions]
    there = (at >= 0) & (at < own.shape[-1])
    picked = own[..., np.where(there, at, 0)]
    seen &= there
    if mask.dtype == bool:
        seen &= picked.astype(np.bool_)
    else:
        added = picked.astype(np.float32)
        seen &= added != -np.inf
        bias += np.where(np.isfinite(added), added, 0) * there


# What an attention has of a cache: where it was written, and what hides its scores.


@frozen
class Update:
    """A `kvc::cache_update` that has been met.

    Attributes:
        cache: value of the old content.
        rows: the device's name of the new rows.
        place: operands that say where the rows go.
        writes: where they go.
    """

    cache: int
    rows: str
    place: tuple[object, ...]
    writes: Writes


def same_place(
    written: Sequence[Update | None], layout: object, keep: object
) -> Writes | None:
    """Return where keys and values are written, None where they are not.

    Args:
        written: the update of the keys, and that of the values.
        layout: in which attention reads them.
        keep: likewise, how many stay at the start of a ring.

    Raises:
        NotTaken: they are written at two places, or in another layout.
    """
    one, other = written
    if one is None and other is None:
        return None
    if one is None or other is None or one.place != other.place:
        raise NotTaken("keys and values are not written at the same place")
    if one.place[2:] != (layout, keep):
        raise NotTaken("a cache is read in another layout than it is written")
    return one.writes


def hiding(grids: Grids) -> Grid:
    """Return the grid of what hides scores, of any attention."""
    ends = [reach_of(grid) for grid in grids.scores.values()]
    return grid_of((-max(high - low for low, high in ends) - HIDING, 0.0))
