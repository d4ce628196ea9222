"""Place the inputs and outputs of a library call, in the caller's memory if possible.

In: arrays of any strides. Out: addresses for the library, and the copies to make before
and after a run. An array needs a copy if it is strided, not aligned, or at the end of
readable memory, or if it is an output that shares memory with an input.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from kvc.runtime.delegates.xnnpack.functions import EXTRA_NBYTES, ExternalValue
from kvc.runtime.delegates.xnnpack.memory import padded
from kvc.runtime.memory.arenas import PAGE_NBYTES
from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.frozen import frozen

Copies = Sequence[tuple[Array, Array]]


@frozen
class Externals:
    """The inputs and outputs of a prepared run.

    Attributes:
        values: addresses by the library's ids: inputs, then outputs.
        before: (target, source) of copies before a run.
        after: (target, source) of copies after a run.
        kept: the arrays at the addresses in `values`, kept alive.
        aligned: whether each array's elements lie at multiples of their size, as
            kvc's own copying kernels require.
    """

    values: "ctypes.Array[ExternalValue]"
    before: Copies
    after: Copies
    kept: Sequence[Array]
    aligned: bool


def place_externals(inputs: Sequence[Array], outputs: Sequence[Array]) -> Externals:
    """Return where the library reads inputs and writes outputs.

    An array that the library cannot use at its own address gets a copy elsewhere.
    """
    before: list[tuple[Array, Array]] = []
    after: list[tuple[Array, Array]] = []
    kept: list[Array] = []
    for array in inputs:
        place = array
        if not (_is_plain(array) and is_readable_behind(array, EXTRA_NBYTES)):
            place = padded(array.dtype, array.shape)
            before.append((place, array))
        kept.append(place)
    for array in outputs:
        place = array
        overlaps = any(np.may_share_memory(array, other) for other in inputs)
        if overlaps or not _is_plain(array):
            place = padded(array.dtype, array.shape)
            after.append((array, place))
        kept.append(place)
    places = (ExternalValue(i, address_of(place)) for i, place in enumerate(kept))
    values = (ExternalValue * len(kept))(*places)
    aligned = all(array.flags.aligned for array in (*inputs, *outputs))
    return Externals(values, before, after, kept, aligned)


def _is_plain(array: Array) -> bool:
    return array.flags.c_contiguous and address_of(array) % array.itemsize == 0


def is_readable_behind(array: Array, nbytes: int) -> bool:
    """Tell whether `nbytes` bytes past the end of a contiguous array can be read.

    They can if they lie on the last page of the array, or in memory that the array is a
    view of.
    """
    end = address_of(array) + array.nbytes
    if not array.nbytes or -end % PAGE_NBYTES >= nbytes:
        return True
    return end + nbytes <= _end_of_memory(array)


def _end_of_memory(array: Array) -> int:
    """Return the end address of the memory that an array is a view of, 0 if unknown."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if isinstance(owner, np.ndarray):
        return address_of(owner) + owner.nbytes
    try:
        whole: Array = np.frombuffer(owner, np.uint8)  # type: ignore[call-overload]
    except (TypeError, ValueError, BufferError):  # not a buffer, or an empty one
        return 0
    return address_of(whole) + whole.nbytes
