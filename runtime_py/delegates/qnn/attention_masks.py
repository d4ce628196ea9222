"""Attention masks over caches as numbers: the host's part of attention.

In: the operands of `kvc::attention`, and of the `kvc::cache_update` that writes the
attention's keys, as arrays of the host. Out: a number to add to each score, which hides
the keys that a query must not see; and the slots of the cache's old content that at
least one query sees. The device gets the old content and the new rows side by side: the
first columns of scores are the slots, and the last columns the new rows. The host finds
the position of each column.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.delegates.host_checks import Read, Writes, count_of
from kvc.runtime.delegates.lowering.builder import NotTaken
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
    """The arguments of an attention that decide which keys each query sees.

    Tensors are given by their value ids.

    Attributes:
        batch, queries, slots: sizes of the operands.
        heads: the number of heads with different masks; 1 if all heads share a mask.
        total: int64 [batch], the number of positions in the cache after the update.
        lengths: int64 [batch], the number of real queries; None if all are real.
        causal, left, right, ring, keep: as in `kvc::attention`.
        mask: bool or float32 [batch or 1, heads or 1, queries, positions], or None.
        slopes: float32 [heads], or None.
        writes: where the cache update that makes the attention's keys writes its rows;
            None if the attention reads a cache without an update.
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
        """Return the number of keys of each query: the slots, then the new rows."""
        return self.slots + (self.writes.rows if self.writes else 0)

    @property
    def bias_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of numbers added to scores [batch, heads, queries, keys]."""
        return self.batch, self.heads, self.queries, self.columns

    def measure(self, read: Read) -> tuple[Floats, Floats, Bools]:
        """Return which keys the queries of a call see.

        Returns:
            bias: float32 of `bias_shape`, the numbers to add to scores.
            seeing: float32 [batch, heads, queries, 1], 1 for queries with a visible key
                and 0 for all other queries.
            kept: bool [batch, slots], the slots of the old content that at least one
                query sees.

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
        # Visibility by position, window and length, bool [queries, columns].
        distance = at[None, :] - queries[:, None]
        allowed: Bools = np.broadcast_to(at >= 0, distance.shape).copy()
        ahead = 0 if self.causal else self.right
        if ahead is not None:
            allowed &= distance <= ahead
        if self.left is not None:
            allowed &= (distance >= -self.left) | (at < self.keep)
        allowed[count:] = False
        seen[:] = allowed
        if self.slopes is not None:
            slopes: Floats = read(self.slopes).astype(np.float32)
            bias += slopes[:, None, None] * (at - queries[:, None])
        if self.mask is not None:
            _apply(read(self.mask), row, at, bias, seen)

    def _positions(self, read: Read, row: int, total: int) -> Integers:
        """Return the position of each column in a batch row; -1 for none."""
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
        """Return the two ranges of positions that a ring has after `total` positions.

        The first range has the positions that are never overwritten, the second the
        last positions. Each range is (first, end).
        """
        first = oldest(total, self.slots, self.keep)
        return (0, min(self.keep, total)), (first, total)


def _apply(mask: Array, row: int, at: Integers, bias: Floats, seen: Bools) -> None:
    """Apply a mask to `seen` if it is bool, or add it to `bias` if it is float.

    Args:
        mask: bool or float32 [batch or 1, heads or 1, queries, positions].
        row: index of the batch row.
        at: the position of each column.
        bias: float32 [heads or 1, queries, columns], changed by a float mask.
        seen: bool of the same shape, changed by any mask.
    """
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


# Cache operands of an attention: their updates, and the grid that hides scores.


@frozen
class Update:
    """A translated `kvc::cache_update`.

    Attributes:
        cache: id of the value that is the cache's old content.
        rows: the device's name of the new rows.
        place: the operands that define where the rows are written.
        writes: which slots the rows are written to.
    """

    cache: int
    rows: str
    place: tuple[object, ...]
    writes: Writes


def same_place(
    written: Sequence[Update | None], layout: object, keep: object
) -> Writes | None:
    """Return where keys and values are written, which must be the same slots.

    Args:
        written: the update of the keys, and the update of the values.
        layout: the attention's layout of keys and values.
        keep: the attention's number of first positions that a ring never overwrites.

    Returns:
        The writes; None if neither keys nor values are updated.

    Raises:
        NotTaken: keys and values are written at different positions, or in a layout
            that differs from the attention's.
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
    """Return a grid for the numbers that hide scores, shared by all attentions."""
    ends = [reach_of(grid) for grid in grids.scores.values()]
    return grid_of((-max(high - low for low, high in ends) - HIDING, 0.0))
