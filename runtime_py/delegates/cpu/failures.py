"""The errors of the backend `cpu`, equal to the reference's, by the kernels' facts."""

from kvc.runtime.native import (
    BAD_LENGTH,
    BAD_OFFSETS,
    CACHE_OVERFLOW,
    DIVISION_BY_ZERO,
    INDEX_OUT_OF_RANGE,
    NO_MEMORY,
    NOT_TRUE,
    NOTHING_TO_REDUCE,
    ROW_LENGTH_OUT_OF_RANGE,
    SINGULAR,
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
    if fault == NO_MEMORY:
        return OutOfMemory(what=instruction.op, nbytes=first)
    return _error_of_values(failure, instruction)


def _error_of_values(failure: Failure, instruction: Instruction) -> Exception:
    """Return torch's error for operands whose values an operator refuses."""
    first, second, third, _ = failure.facts
    fault = failure.fault
    if fault == BAD_LENGTH:
        what = f"row {first} has {second} valid positions, the cache has {third}"
        return ValueError(what)
    if fault == NOTHING_TO_REDUCE:
        return ValueError("there is no greatest or least of no elements")
    if fault == DIVISION_BY_ZERO:
        return RuntimeError("ZeroDivisionError")  # as torch says it
    if fault == NOT_TRUE:
        return RuntimeError(instruction.arguments[1])
    if fault == BAD_OFFSETS:
        return ValueError(f"offsets must rise from 0 to at most {first}")
    assert fault == SINGULAR, "kernels have no other faults"
    return ValueError(_singular(instruction.op, matrix=first, place=second))


def _singular(op: str, matrix: int, place: int) -> str:
    """Return torch's message for a matrix that cannot be inverted or factorised."""
    name = op.removeprefix("aten::").replace("linalg_", "linalg.")
    told = "" if matrix < 0 else f"(Batch element {matrix}): "
    if "solve" in op:
        what = "The solver failed because the input matrix is singular."
        return f"torch.{name}: {told}{what}"
    if "cholesky" in op:
        what = (
            "The factorization could not be completed because the input is not "
            f"positive-definite (the leading minor of order {place} is not "
            "positive-definite)."
        )
        return f"{name}: {told}{what}"
    what = (
        f"The diagonal element {place} is zero, the inversion could not be completed "
        "because the input matrix is singular."
    )
    return f"{name}: {told}{what}"
