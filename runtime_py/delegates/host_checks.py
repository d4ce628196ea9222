"""Operators that only check values; the host runs them before the device starts."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.execution.values import Values, checks_rows
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import (
    BranchMismatch,
    CacheOverflow,
    IndexOutOfRange,
    RowLengthOutOfRange,
)
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph, Instruction
from kvc.schema.rings import slot_runs

CHECK_INDEX: Final = "kvc::check_index"


def checks_of(
    graph: Graph, values: Values, sizes: Mapping[str, int]
) -> list[tuple[int, Callable[[], None]]]:
    """Return the checks of a graph, each with the index of its instruction."""
    found: list[tuple[int, Callable[[], None]]] = []
    for index, step in enumerate(graph.instructions):
        check = check_of(graph, step, sizes)
        if check is not None:
            found.append((index, partial(check, *_arguments(step, values))))
    return found


def check_of(
    graph: Graph, step: Instruction, sizes: Mapping[str, int]
) -> Callable[..., None] | None:
    """Return the check function of a check instruction; None for other instructions."""
    if step.op == CHECK_INDEX and checks_rows(graph, step, sizes):
        return _check_row_index
    return _CHECKS.get(step.op)


def _arguments(step: Instruction, values: Values) -> list[object]:
    return [values.argument(each, values.array) for each in step.arguments]


def check_slots(row: int, start: int, count: int, slots: int, least: int = 0) -> None:
    """Check that a batch row has `count` slots from slot `start` on.

    Args:
        row: index of the batch row, for messages.
        start: the first slot.
        count: the number of slots.
        slots: the number of slots of the row.
        least: the least valid `start`.

    Raises:
        IndexOutOfRange: `start` is less than `least`.
        CacheOverflow: `start + count` is more than `slots`.
    """
    if start < least:
        raise IndexOutOfRange(place="", index=start, size=slots)
    if start + count > slots:
        raise CacheOverflow(row=row, start=start, count=count, capacity=slots)


def check_length(row: int, count: int, most: int) -> None:
    """Check that the number of real tokens in a batch row is from 0 to `most`.

    Raises:
        RowLengthOutOfRange: the number is below 0, or more than `most`.
    """
    if not 0 <= count <= most:
        raise RowLengthOutOfRange(row=row, length=count, most=most)


def _check_index(index: Array, least: int, count: int, slots: int) -> None:
    for value in (int(np.min(index)), int(np.max(index))) if index.size else ():
        if value < least or value + count > slots:
            raise IndexOutOfRange(place="", index=value, size=slots)


def _check_row_index(index: Array, least: int, count: int, slots: int) -> None:
    for row, start in enumerate(index.reshape(-1).tolist()):
        check_slots(row, start, count, slots, least)


def _check_rows(index: Array, lengths: Array, most: int, slots: int) -> None:
    pairs = zip(index.tolist(), lengths.tolist(), strict=True)
    for row, (start, count) in enumerate(pairs):
        check_length(row, count, most)
        check_slots(row, start, count, slots)


def _check_size(size: int, expected: int) -> None:
    if size != expected:
        raise BranchMismatch(size=size, expected=expected)


_CHECKS: Final[Mapping[str, Callable[..., None]]] = {
    CHECK_INDEX: _check_index,
    "kvc::check_rows": _check_rows,
    "kvc::check_size": _check_size,
}


# Locations of the rows that a `kvc::cache_update` writes, known before it runs.


Read = Callable[[int], Array]  # the array of a value


@frozen
class Writes:
    """Which slots of a cache a `kvc::cache_update` writes.

    Attributes:
        start: id of the value with the first slot to write in each batch row, int64
            [batch]; None for slot 0.
        lengths: id of the value with the number of rows to write in each batch row,
            int64 [batch]; None to write all rows.
        rows: the number of new rows for each batch row.
        slots: the number of slots of the cache.
        mode: "linear" or "circular".
        keep: the number of first positions that a circular cache never overwrites.
    """

    start: int | None
    lengths: int | None
    rows: int
    slots: int
    mode: str
    keep: int

    def runs(self, read: Read, row: int) -> list[tuple[int, int, int]]:
        """Return the writes in a batch row: (first new row, first slot, count) each.

        Each entry stands for `count` new rows that go to consecutive slots.

        Raises:
            IndexOutOfRange, CacheOverflow, RowLengthOutOfRange: the write does not fit.
        """
        start = 0 if self.start is None else int(read(self.start)[row])
        count = count_of(read, self.lengths, self.rows, row)
        ring = self.mode == "circular"
        if not ring:
            check_slots(row, start, count, self.slots)
            return [(0, start, count)] if count else []
        if self.keep and start < 0:
            raise IndexOutOfRange(place="", index=start, size=self.slots)
        if count > self.slots - max(0, min(start, self.keep)):
            raise CacheOverflow(row=row, start=start, count=count, capacity=self.slots)
        return [*_numbered(slot_runs(start, count, self.slots, self.keep))]


def _numbered(runs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    done = 0
    for slot, count in runs:
        yield done, slot, count
        done += count


def count_of(read: Read, lengths: int | None, most: int, row: int) -> int:
    """Return the number of real tokens in a batch row of a call.

    Args:
        read: returns the array of a value, given the value's id.
        lengths: id of the value with the numbers of real tokens, int64 [batch]; None if
            all tokens are real.
        most: the number of tokens in the call.
        row: index of the batch row.

    Raises:
        RowLengthOutOfRange: the number is below 0, or more than `most`.
    """
    count = most if lengths is None else int(read(lengths)[row])
    check_length(row, count, most)
    return count
