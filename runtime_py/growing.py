"""`GrowingArray`: an array of the caller's own, with spare capacity behind its end.

In: a dtype, dims, the axis it grows along, and how long it may become. Out: an array
that becomes longer without moving. Given to a method as the input that the method
extends, it is extended in place. Its memory is reserved: pages appear as rows do.
"""

from collections.abc import Sequence

import ml_dtypes  # noqa: F401  # lets numpy know bfloat16 by its name
import numpy as np
import numpy.typing as npt

from kvc.runtime.arenas import PAGE_NBYTES, Arena
from kvc.runtime.arrays import Array, copy_into, is_tensor, prefix, tensor_as_array
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSetting, CacheOverflow


class GrowingArray:
    """An array with spare capacity along one axis; belongs to one thread at a time.

    Attributes:
        axis: along which it grows, counted from 0.
        capacity: the greatest length along it.
        memory: all of it, spare capacity included.
    """

    def __init__(
        self, dtype: npt.DTypeLike, dims: Sequence[int], axis: int, capacity: int
    ) -> None:
        """Reserve memory.

        Args:
            dtype: a numpy dtype, or its name; "bfloat16" too.
            dims: the shape to begin with, of zeros; along `axis` mostly 0.
            axis: along which it grows.
            capacity: the greatest length along `axis`.

        Raises:
            BadSetting: an argument is impossible.
            OutOfMemory: the system gives no address space.
        """
        kind = _element_type(dtype)
        self.axis = _check_axis(axis, len(dims))
        self.capacity = capacity
        shape = [int(size) for size in dims]
        if min(shape) < 0 or not shape[self.axis] <= capacity:
            expected = f"sizes from 0 on, at most {capacity} along axis {self.axis}"
            raise BadSetting(name="dims", expected=expected, found=tuple(shape))
        self._length = shape[self.axis]
        shape[self.axis] = capacity
        nbytes = int(np.prod([kind.itemsize, *shape], dtype=object))
        self._arena = Arena(nbytes, "a growing array")
        self.memory: Array = self._arena.array(0, kind, tuple(shape))

    @property
    def array(self) -> Array:
        """Return the array as it is now, without a copy."""
        return prefix(self.memory, self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape as it is now."""
        shape = list(self.memory.shape)
        shape[self.axis] = self._length
        return tuple(shape)

    @property
    def dtype(self) -> "np.dtype[np.generic]":
        """Return the element type."""
        return self.memory.dtype

    @property
    def length(self) -> int:
        """Return the length along the axis."""
        return self._length

    def __len__(self) -> int:
        return self._length

    def append(self, rows: object) -> None:
        """Write an array or tensor behind the end.

        Raises:
            BadSetting: it is not of this dtype and these dims.
            CacheOverflow: there is not so much room; nothing has been written.
        """
        added = _as_array(rows)
        count = added.shape[self.axis] if added.ndim == self.memory.ndim else 0
        expected = list(self.memory.shape)
        expected[self.axis] = count
        if added.shape != tuple(expected) or added.dtype != self.dtype:
            found = f"{added.dtype}{list(added.shape)}"
            wanted = f"{self.dtype}{expected} of any length along axis {self.axis}"
            raise BadSetting(name="rows", expected=wanted, found=found)
        self.check_room(self._length, count)
        copy_into(self._slots(self._length, self._length + count), added)
        self._length += count

    def truncate(self, length: int) -> None:
        """Forget what lies at and behind `length`; whole pages of it are given back.

        Raises:
            BadSetting: `length` is not from 0 to the length there is.
        """
        if not 0 <= length <= self._length:
            expected = f"0..{self._length}"
            raise BadSetting(name="length", expected=expected, found=length)
        old, self._length = self._length, length
        stride = self.memory.strides[self.axis]
        nbytes = (old - length) * stride
        if nbytes >= PAGE_NBYTES:
            # In C order what is around the axis comes before it.
            around = int(np.prod(self.memory.shape[: self.axis]))
            for run in range(around):
                start = (run * self.capacity + length) * stride
                self._arena.give_back(start, nbytes)

    def check_room(self, start: int, count: int) -> None:
        """Check that so many rows fit from `start` on.

        Raises:
            CacheOverflow: they do not.
        """
        if start + count > self.capacity:
            raise CacheOverflow(row=0, start=start, count=count, capacity=self.capacity)

    def set_length(self, length: int) -> None:
        """Take for the length what a method has made it."""
        self._length = length

    def _slots(self, low: int, high: int) -> Array:
        return self.memory[(slice(None),) * self.axis + (slice(low, high),)]

    def __repr__(self) -> str:
        return f"<GrowingArray {self.dtype}{list(self.shape)} of {self.capacity}>"


def _element_type(dtype: npt.DTypeLike) -> DType:
    try:
        found = DType.from_numpy(np.dtype(dtype))
    except TypeError:
        found = None
    if found is None:
        known = ", ".join(member.label for member in DType)
        raise BadSetting(name="dtype", expected=f"one of {known}", found=repr(dtype))
    return found


def _check_axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        expected = f"one of the {rank} axes"
        raise BadSetting(name="axis", expected=expected, found=axis)
    return axis % rank


def _as_array(rows: object) -> Array:
    if isinstance(rows, np.ndarray):
        array: Array = rows
        return array
    if is_tensor(rows):
        return tensor_as_array(rows)  # type: ignore[arg-type]  # is_tensor says so
    return np.asarray(rows)
