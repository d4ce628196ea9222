"""The checks of a partition, which the host makes before the device runs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.execution.row_checks import checks_rows
from kvc.runtime.execution.values import Values
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import (
    BranchMismatch,
    CacheOverflow,
    IndexOutOfRange,
    RowLengthOutOfRange,
)
from kvc.schema.graph import Graph, Instruction

CHECK_INDEX: Final = "kvc::check_index"


def checks_of(
    graph: Graph, values: Values, sizes: Mapping[str, int]
) -> list[tuple[int, Callable[[], None]]]:
    """Return the checks of a graph, with the indices of their instructions."""
    found: list[tuple[int, Callable[[], None]]] = []
    for index, step in enumerate(graph.instructions):
        check = check_of(graph, step, sizes)
        if check is not None:
            found.append((index, partial(check, *_arguments(step, values))))
    return found


def check_of(
    graph: Graph, step: Instruction, sizes: Mapping[str, int]
) -> Callable[..., None] | None:
    """Return the check that an instruction is, of arrays and numbers; None for none."""
    if step.op == CHECK_INDEX and checks_rows(graph, step, sizes):
        return _check_row_index
    return _CHECKS.get(step.op)


def _arguments(step: Instruction, values: Values) -> list[object]:
    return [values.argument(each, values.array) for each in step.arguments]


def check_slots(row: int, start: int, count: int, slots: int, least: int = 0) -> None:
    """Check that so many slots fit from a row's first one on.

    Raises:
        IndexOutOfRange: it would begin before slot `least`.
        CacheOverflow: it would end past the last slot.
    """
    if start < least:
        raise IndexOutOfRange(place="", index=start, size=slots)
    if start + count > slots:
        raise CacheOverflow(row=row, start=start, count=count, capacity=slots)


def check_length(row: int, count: int, most: int) -> None:
    """Check how many of a row's tokens count.

    Raises:
        RowLengthOutOfRange: less than none, or more than there are.
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
