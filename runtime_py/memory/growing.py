"""`GrowingArray`: an array of the caller, with spare capacity after its end.

In: a dtype, dims, the axis along which the array grows, and the greatest length. Out:
an array that becomes longer without moving. If a method extends its input, and the
input is such an array, the method extends the array in place. The memory is reserved
address space: pages appear when elements are written.
"""

import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.memory.arenas import PAGE_NBYTES, Arena
from kvc.runtime.memory.arrays import (
    Array,
    copy_into,
    is_tensor,
    prefix,
    tensor_as_array,
)
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSetting, CacheOverflow


class GrowingArray:
    """An array with spare capacity along one axis; not safe for use by two threads.

    Attributes:
        axis: the axis along which the array grows, counted from 0.
        capacity: the greatest length along the axis.
        memory: the whole memory, including spare capacity.
    """

    def __init__(
        self, dtype: npt.DTypeLike, dims: Sequence[int], axis: int, capacity: int
    ) -> None:
        """Reserve memory.

        Args:
            dtype: a numpy dtype, or the name of a dtype, including "bfloat16".
            dims: the shape at first, filled with zeros; usually 0 along `axis`.
            axis: the axis along which the array grows.
            capacity: the greatest length along `axis`.

        Raises:
            BadSetting: an argument is impossible.
            OutOfMemory: the system provides no address space.
        """
        kind = _element_type(dtype)
        shape = _check_dims(dims)
        self.axis = _check_axis(axis, len(shape))
        whole = _whole(capacity)
        if whole is None or whole < 0:
            expected = "a whole number from 0 on"
            raise BadSetting(name="capacity", expected=expected, found=repr(capacity))
        self.capacity = most = whole
        if min(shape) < 0 or shape[self.axis] > most:
            expected = f"sizes from 0 on, at most {most} along axis {self.axis}"
            raise BadSetting(name="dims", expected=expected, found=tuple(shape))
        self._length = shape[self.axis]
        shape[self.axis] = most
        nbytes = int(np.prod([kind.itemsize, *shape], dtype=object))
        self._arena = Arena(nbytes, "a growing array")
        self.memory: Array = self._arena.array(0, kind, tuple(shape))

    @property
    def array(self) -> Array:
        """Return the array with its present length, without a copy."""
        return prefix(self.memory, self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the present shape."""
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

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> Array:
        """Return the array for numpy, without a copy unless one is requested.

        Raises:
            ValueError: `copy` is False, but the requested dtype needs a copy.
        """
        return np.array(self.array, dtype=dtype, copy=copy)

    def append(self, rows: object) -> None:
        """Write an array or tensor after the end.

        Raises:
            BadSetting: the argument is not an array, or its dtype or dims do not fit.
            CacheOverflow: the array has too little room; nothing has been written.
        """
        added = self._take(rows)
        count = added.shape[self.axis]
        self.check_room(self._length, count)
        room = slice(self._length, self._length + count)
        copy_into(self.memory[(slice(None),) * self.axis + (room,)], added)
        self._length += count

    def truncate(self, length: int) -> None:
        """Drop the elements from `length` on, and free their whole pages.

        Raises:
            BadSetting: `length` is not from 0 to the present length.
        """
        end = _whole(length)
        if end is None or not 0 <= end <= self._length:
            expected = f"0..{self._length}"
            raise BadSetting(name="length", expected=expected, found=repr(length))
        old, self._length = self._length, end
        stride = self.memory.strides[self.axis]
        nbytes = (old - end) * stride
        if nbytes >= PAGE_NBYTES:
            # In C order the axes before the growing axis are outermost.
            for run in range(int(np.prod(self.memory.shape[: self.axis]))):
                self._arena.give_back((run * self.capacity + end) * stride, nbytes)

    def check_room(self, start: int, count: int) -> None:
        """Check that `count` elements along the axis fit from `start` on.

        Raises:
            CacheOverflow: the elements do not fit.
        """
        if start + count > self.capacity:
            raise CacheOverflow(row=0, start=start, count=count, capacity=self.capacity)

    def set_length(self, length: int) -> None:
        """Set the length after a call of a method has extended the array."""
        self._length = length

    def _take(self, rows: object) -> Array:
        """Return the argument of `append` as an array.

        Raises:
            BadSetting: the argument is not an array, or its dtype or dims do not fit.
        """
        expected: list[object] = list(self.memory.shape)
        expected[self.axis] = "any"
        wanted = f"{self.dtype}[{', '.join(map(str, expected))}]"
        try:
            added = _as_array(rows)
        except (TypeError, ValueError, RuntimeError) as error:
            found = f"a Python {type(rows).__name__} that is not an array ({error})"
            raise BadSetting(name="rows", expected=wanted, found=found) from error
        fits = added.ndim == len(expected) and all(
            size in (found, "any")
            for size, found in zip(expected, added.shape, strict=True)
        )
        if not fits or added.dtype != self.dtype:
            found = f"{added.dtype}{list(added.shape)}"
            raise BadSetting(name="rows", expected=wanted, found=found)
        return added

    def __repr__(self) -> str:
        return f"<GrowingArray {self.dtype}{list(self.shape)} of {self.capacity}>"


def _element_type(dtype: npt.DTypeLike | None) -> DType:
    import ml_dtypes  # noqa: F401  # lets numpy know bfloat16 by its name

    try:
        # numpy takes None for float64.
        found = None if dtype is None else DType.from_numpy(np.dtype(dtype))
    except (TypeError, ValueError, SyntaxError):  # numpy raises each of them
        found = None
    if found is None:
        known = ", ".join(member.label for member in DType)
        raise BadSetting(name="dtype", expected=f"one of {known}", found=repr(dtype))
    return found


def _whole(value: object) -> int | None:
    """Return an integer as an int, None for a bool or any other value."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # asks for a TypeError
    except TypeError:
        return None


def _check_dims(dims: Sequence[int]) -> list[int]:
    try:
        sizes = [_whole(size) for size in dims]
    except TypeError:
        sizes = [None]
    whole = [size for size in sizes if size is not None]
    if len(whole) < len(sizes):
        expected = "a sequence of whole numbers"
        raise BadSetting(name="dims", expected=expected, found=repr(dims))
    return whole


def _check_axis(axis: int, rank: int) -> int:
    whole = _whole(axis)
    if whole is None or not -rank <= whole < rank:
        expected = f"one of the {rank} axes"
        raise BadSetting(name="axis", expected=expected, found=repr(axis))
    return whole % rank


def _as_array(rows: object) -> Array:
    if isinstance(rows, np.ndarray):
        array: Array = rows
        return array
    if is_tensor(rows):
        return tensor_as_array(rows)  # type: ignore[arg-type]  # is_tensor says so
    return np.asarray(rows)
