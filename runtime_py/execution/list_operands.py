"""Check where the operands of a bound list lie: each in its own region.

In: the operands of a list at the sizes of a call, and how many bytes each region has.
Out: nothing, or the first rule that is broken. The native library checks steps besides;
it knows where memory is, but not which region an operand is to be in.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.memory.arrays import Array
from kvc.schema.dtypes import DType

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]  # of the dtype TENSOR
MOST_OWN = 1 << 26  # elements of cursors and filled regions
_MOST_ELEMENTS = 1 << 40
ITEMSIZES = np.array([dtype.itemsize for dtype in DType], np.int64)


def spans(rows: Rows) -> Ints | None:
    """Return how many bytes each operand spans; None if one has impossible dims."""
    dims, strides = rows["dims"], rows["strides"]
    for found in (dims, strides):
        if np.any((found < 0) | (found > _MOST_ELEMENTS)):
            return None
    steps = np.maximum(dims - 1, 0)
    # As floats first: products of numbers within their limits may have 80 bits.
    if np.any((steps.astype(np.float64) * strides).sum(axis=1) > _MOST_ELEMENTS):
        return None
    reach = (steps * strides).sum(axis=1)
    axes = np.arange(dims.shape[1]) < rows["rank"][:, None]
    empty = np.any(axes & (dims == 0), axis=1)
    itemsizes = ITEMSIZES[rows["dtype"]]
    found_spans: Ints = np.where(empty, 0, (reach + 1) * itemsizes)
    return found_spans


def why_misplaced(rows: Rows, offsets: Ints, held: Ints) -> str:
    """Return "" if each operand lies in its region, else what is wrong.

    Args:
        rows: the operands, without those left out.
        offsets: where in its region each begins, in bytes.
        held: how many bytes the region of each has.
    """
    nbytes = spans(rows)
    if nbytes is None:
        return "an operand has impossible dims"
    within = (offsets >= 0) & (offsets <= held) & (nbytes <= held - offsets)
    if not np.all(within & (offsets % ITEMSIZES[rows["dtype"]] == 0)):
        return "an operand lies outside of its memory"
    return ""


def lies_in_order(array: Array, layout: Sequence[int]) -> bool:
    """Tell whether an array has no gaps, its dims in an order, outermost first."""
    step = array.itemsize
    for dim in reversed(layout):
        if array.shape[dim] != 1 and array.strides[dim] != step:
            return False
        step *= array.shape[dim]
    return True


def rounded(count: int) -> int:
    """Return the elements that a region of int64 takes, to a multiple of 64 bytes."""
    return -(-count // 8) * 8
