"""Check native steps that are bound while a test runs, as those of a file would be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from kvc.runtime.native import NativeCall, NativePartition, Steps
from kvc.runtime.native.checks import Breach, find_breach
from kvc.schema.dtypes import DType

NEVER = "a kernel that no file may ask for"


def operands_of(steps: Steps) -> np.ndarray:
    """Return the operands of all steps, of the dtype `TENSOR`."""
    steps.settle()
    return steps._memory[0]


def extent(operand: np.void) -> tuple[int, int]:
    """Return where the memory of an operand begins and ends."""
    rank, begin = int(operand["rank"]), int(operand["data"])
    dims, strides = operand["dims"][:rank], operand["strides"][:rank]
    if begin == 0 or 0 in dims:
        return begin, begin
    reach = 1 + int(((dims - 1) * strides).sum())
    return begin, begin + reach * DType(int(operand["dtype"])).itemsize


def regions_of(steps: Steps) -> list[np.ndarray]:
    """Return the memory that the operands of steps lie in, without overlaps."""
    merged: list[list[int]] = []
    for begin, end in sorted(map(extent, operands_of(steps))):
        if begin == end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return [bytes_at(begin, end - begin) for begin, end in merged]


def breach_of(steps: Steps) -> Breach | None:
    return find_breach(steps, regions_of(steps))


@contextmanager
def all_steps_checked() -> Iterator[list[int]]:
    """Fail where steps are bound that no file may have; yield numbers of steps.

    Calls of other libraries are left out.
    """
    counts: list[int] = []
    init = NativeCall.__init__

    def checked(call: NativeCall, partitions: Sequence[NativePartition]) -> None:
        for partition in partitions:
            breach = breach_of(partition.steps)
            assert breach is None or breach.rule == NEVER, breach
            counts.append(len(partition.steps))
        init(call, partitions)

    with patch.object(NativeCall, "__init__", checked):
        yield counts


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    memory = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1"}
    holder = type("Memory", (), {"__array_interface__": {"version": 3, **memory}})
    return np.asarray(holder())
