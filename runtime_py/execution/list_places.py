"""Where the operands of a bound list lie in their regions, checked at the sizes of a call.

In: operands whose numbers are evaluated; lists are untrusted, so these may be anything.
Out: how many bytes each spans, and checks that it lies in its own region. What kernels
may do with operands is checked later (`native/checks.py`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.memory.arrays import Array
from kvc.schema.bounds import RegionKind
from kvc.schema.dtypes import DType

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]  # of the dtype TENSOR
_MOST_ELEMENTS = 1 << 40
MOST_OWN = 1 << 26  # elements of cursors and of filled regions
_ITEMSIZES = np.array([one.itemsize for one in DType], np.int64)
OUTSIDE = "an operand lies outside of its memory"


class PlaceError(Exception):
    """Operands that a list may not have; the message says why."""


class _At:
    """Memory at an address, as numpy takes it."""

    def __init__(self, held: Array, address: int, row: Rows) -> None:
        """Describe an operand at an address within `held`, which is kept alive."""
        rank, itemsize = int(row["rank"]), int(_ITEMSIZES[row["dtype"]])
        self.held = held
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "typestr": f"|V{itemsize}",
            "shape": tuple(row["dims"][:rank].tolist()),
            "strides": tuple((row["strides"][:rank] * itemsize).tolist()),
        }


def array_at(held: Array, row: Rows) -> Array:
    """Return the array of an operand, which lies in `held`; its address is in `row`."""
    found: Array = np.asarray(_At(held, int(row["data"]), row))
    return found.view(DType(int(row["dtype"])).numpy)


def spans(rows: Rows) -> Ints:
    """Return the number of bytes from the first to the last element of operands.

    Raises:
        PlaceError: one has dims or strides that no operand has.
    """
    dims, strides = rows["dims"], rows["strides"]
    small = (dims >= 0) & (dims <= _MOST_ELEMENTS)
    small &= (strides >= 0) & (strides <= _MOST_ELEMENTS)
    steps = np.maximum(dims - 1, 0)
    reach = np.sum(steps.astype(np.float64) * strides.astype(np.float64), axis=1)
    if not (np.all(small) and np.all(reach <= _MOST_ELEMENTS)):
        raise PlaceError("an operand has impossible dims")
    axes = np.arange(dims.shape[1])
    empty = np.any((dims == 0) & (axes < rows["rank"][:, None]), axis=1)
    whole = (np.sum(steps * strides, axis=1) + 1) * _ITEMSIZES[rows["dtype"]]
    found: Ints = np.where(empty, 0, whole)
    return found


def check_within(rows: Rows, nbytes: Ints, held: Ints) -> None:
    """Check that operands lie in their regions; `data` has the offset of each.

    Args:
        rows: the operands.
        nbytes: what `spans` returns for them.
        held: the size of the region of each, in bytes.

    Raises:
        PlaceError: one lies outside, or between the elements of its dtype.
    """
    offsets = rows["data"].astype(np.int64)
    inside = (offsets >= 0) & (offsets <= held) & (nbytes <= held - offsets)
    if not np.all(inside & (offsets % _ITEMSIZES[rows["dtype"]] == 0)):
        raise PlaceError(OUTSIDE)


def cursor_counts(counts: Ints) -> list[int]:
    """Return the number of elements of each cursor of a list.

    Raises:
        PlaceError: one is negative, or they are too many.
    """
    found: list[int] = counts.tolist()
    if any(not 0 <= count <= MOST_OWN for count in found):
        raise PlaceError("a cursor has an impossible number of elements")
    return found


def filled_counts(
    rows: Rows, nbytes: Ints, regions: Array, places: Array, cursors: Sequence[int]
) -> dict[int, int]:
    """Return the number of elements of each filled region, by the id of its form.

    `cursors` are the numbers of elements of the cursors, which count to what is allowed.

    Raises:
        PlaceError: they are too many.
    """
    found = dict[int, int]()
    for i in np.flatnonzero(regions == RegionKind.FILLED).tolist():
        offset, form = int(rows["data"][i].astype(np.int64)), int(places[i])
        if not 0 <= offset <= 8 * MOST_OWN or nbytes[i] > 8 * MOST_OWN:
            raise PlaceError("an operand is too large")
        found[form] = max(found.get(form, 0), (offset + int(nbytes[i]) + 7) // 8)
    if sum((count + 7) // 8 * 8 for count in (*cursors, *found.values())) > MOST_OWN:
        raise PlaceError("its cursors take too much memory")
    return found


def check_declared(
    rows: Rows, declared: Sequence[tuple[DType, tuple[int, ...]]], what: str
) -> None:
    """Check that inputs or outputs have the dtypes and shapes that the method declares.

    Raises:
        PlaceError: one has another.
    """
    for row, (dtype, shape) in zip(rows, declared, strict=True):
        found = tuple(row["dims"][: int(row["rank"])].tolist())
        if int(row["dtype"]) != dtype or found != shape:
            raise PlaceError(f"it has {what} of another shape")
