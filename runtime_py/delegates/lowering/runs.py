"""Bind a partition to arrays of the host, and run it as a function of a device.

In: a call, whose memory the device reads and writes, and the arrays of the partition's
inputs and outputs. Out: a `Bound`, which converts inputs to the device's dtypes, runs
the function, and writes the outputs.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from kvc.runtime.delegates.host_checks import Read, count_of
from kvc.runtime.delegates.host_runs import HostRun, Runs
from kvc.runtime.delegates.lowering.plan import OUTSIDE, Changed, Looked, Plan
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import IndexOutOfRange


class Bound(HostRun[Plan]):
    """A partition that is bound to arrays of the host, and runs as a function."""

    def _compute(self) -> Callable[[], None]:
        plan = self._call.plan
        for looked in plan.looked:
            self._at = looked.instruction
            check_access(looked, self._read)
        self._at = 0
        for feed in plan.feeds:
            convert_into(self._call.arrays[feed.name], self._read(feed.value))
        self._call.run()
        self._look_outside(plan)
        changed = [(each, self._changed_rows(each)) for each in plan.changed]
        return partial(self._take, changed)

    def _changed_rows(self, changed: Changed) -> Runs | None:
        """Return the rows of a cache that a call wrote; None if any row can change."""
        if changed.writes is None:
            return None
        runs = self._rows(changed.cache, changed.writes)
        # The function returns the whole cache, so rows are read at their own slots.
        return [[(slot, slot, count) for _, slot, count in parts] for parts in runs]

    def _take(self, changed: list[tuple[Changed, Runs | None]]) -> None:
        """Write the function's results to the partition's outputs.

        Args:
            changed: each state that the call changed, with the runs of its written
                rows; None in place of the runs copies the whole state.
        """
        for take in self._call.plan.takes:
            target = self._outputs[take.output]
            made = self._call.arrays[take.name]
            np.copyto(target, made.reshape(target.shape))
        for each, runs in changed:
            made = self._call.arrays[each.name]
            if runs is None:
                np.copyto(self._outputs[each.output], made)
            else:
                self._write_rows(each.output, each.cache, made, runs)

    def _look_outside(self, plan: Plan) -> None:
        """Raise an error if the function has found an index out of range.

        Raises:
            IndexOutOfRange: an index is out of range; the error names the first one.
        """
        if not plan.indexed:
            return
        found = self._call.arrays[OUTSIDE].reshape(-1, 2).tolist()
        for indexed, worst in zip(plan.indexed, found, strict=True):
            self._at = indexed.instruction
            for index in worst:
                if index:
                    raise IndexOutOfRange(place="", index=index, size=indexed.most)


def check_access(looked: Looked, read: Read) -> None:
    """Check on the host the positions and lengths of one cache access.

    Args:
        looked: the cache access.
        read: returns the array of a value by the value's id.

    Raises:
        IndexOutOfRange, CacheOverflow, RowLengthOutOfRange, ValueError: a position or a
            length is out of range.
    """
    if looked.writes is not None:
        given = looked.writes.start, looked.writes.lengths
        rows = max([len(read(each)) for each in given if each is not None], default=0)
        for row in range(rows):
            looked.writes.runs(read, row)
        if not rows:
            looked.writes.runs(read, 0)
        return
    assert looked.total is not None
    for row, total in enumerate(read(looked.total).tolist()):
        if total < 0 or (looked.slots is not None and total > looked.slots):
            raise ValueError(f"valid length {total} of {looked.slots} slots")
        count_of(read, looked.lengths, looked.queries, row)


def convert_into(target: Array, source: Array) -> None:
    """Copy `source` to `target` of the same shape, which has a dtype of the device.

    In a float16 target, numbers of 65520 and more become infinite.

    Raises:
        ValueError: an int64 of `source` needs more than 32 bits.
    """
    if source.dtype == np.int64 and source.size:
        limits = np.iinfo(np.int32)
        for number in (int(source.min()), int(source.max())):
            if not limits.min <= number <= limits.max:
                raise ValueError(
                    f"the device has integers of 32 bits, and this is {number}"
                )
    with np.errstate(over="ignore"):
        np.copyto(target, source, casting="same_kind")
