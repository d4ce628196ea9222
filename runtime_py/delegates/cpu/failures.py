"""The errors of the backend `cpu`, equal to the reference's, by the kernels' facts."""

from kvc.runtime.native import (
    BAD_LENGTH,
    CACHE_OVERFLOW,
    DIVISION_BY_ZERO,
    INDEX_OUT_OF_RANGE,
    NOT_TRUE,
    NOTHING_TO_REDUCE,
    ROW_LENGTH_OUT_OF_RANGE,
    Failure,
)
from kvc.schema.errors import (
    CacheOverflow,
    IndexOutOfRange,
    OutOfMemory,
    RowLengthOutOfRange,
)
from kvc.schema.graph import Instruction


def error_of(failure: Failure, instruction: Instruction, is_index: bool) -> Exception:
    """Return the error that the reference would raise for the failure of a step.

    Args:
        failure: the failure.
        instruction: the instruction of the step.
        is_index: whether the instruction checks an index that selects no cache rows.
    """
    first, second, third, fourth = failure.facts
    fault = failure.fault
    if fault == CACHE_OVERFLOW and is_index:
        return IndexOutOfRange(place="", index=second, size=fourth)
    if fault == CACHE_OVERFLOW:
        return CacheOverflow(row=first, start=second, count=third, capacity=fourth)
    if fault == INDEX_OUT_OF_RANGE:
        return IndexOutOfRange(place="", index=first, size=second)
    if fault == ROW_LENGTH_OUT_OF_RANGE:
        return RowLengthOutOfRange(row=first, length=second, most=third)
    if fault == BAD_LENGTH:
        what = f"row {first} has {second} valid positions, the cache has {third}"
        return ValueError(what)
    if fault == NOTHING_TO_REDUCE:
        return ValueError("there is no greatest or least of no elements")
    if fault == DIVISION_BY_ZERO:
        return RuntimeError("ZeroDivisionError")  # as torch says it
    if fault == NOT_TRUE:
        return RuntimeError(instruction.arguments[1])
    return OutOfMemory(what=instruction.op, nbytes=first)
