"""Functions on numpy arrays: copies, views, addresses, and views of torch tensors.

In: arrays, or a caller's argument. Out: arrays over the same memory. Needs only numpy;
a torch tensor is recognized only if torch is already imported.
"""

import ctypes
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvc.schema.dtypes import DType

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[np.generic]
Part = tuple[int | slice, ...]  # an index of an array's first axes


def is_tensor(value: object) -> bool:
    """Tell whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_as_array(tensor: "Tensor") -> Array:
    """Return an array over a torch tensor's memory, with its strides.

    Raises:
        TypeError: numpy has no dtype like the tensor's, or the tensor's elements do not
            lie in ordinary memory.
    """
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(DType.BFLOAT16.numpy)
    array: Array = plain.numpy()
    return array


def own_copy(array: Array) -> Array:
    """Return a contiguous copy of an array, in new memory."""
    if array.dtype.kind != "V":
        return array.copy(order="C")
    return _bits(array).copy(order="C").view(array.dtype)


def copy_into(target: Array, source: Array) -> None:
    """Copy elements between arrays of equal dtype and shape."""
    if target.dtype.kind == "V":
        target, source = _bits(target), _bits(source)
    np.copyto(target, source)


def _bits(array: Array) -> Array:
    # numpy copies ml_dtypes element by element; the same bits as uint16 copy at once.
    return array.view(np.uint16) if array.dtype.kind == "V" else array


def zero(array: Array) -> None:
    """Set all elements to zero."""
    _bits(array)[...] = 0


def parts_of(
    shape: tuple[int, ...], most: int
) -> Iterator[tuple[Part, tuple[int, ...]]]:
    """Yield parts that together make up an array, and the shape of each part.

    The parts come in the order of the elements. Each part has 1 to `most` elements, and
    is contiguous if the array is contiguous.
    """
    axis = 0
    while axis < len(shape) and math.prod(shape[axis + 1 :]) > most:
        axis += 1
    if axis == len(shape):
        yield (), ()
        return
    inner = shape[axis + 1 :]
    step = most // max(1, math.prod(inner))
    for first in np.ndindex(shape[:axis]):
        for low in range(0, shape[axis], step):
            high = min(low + step, shape[axis])
            yield (*first, slice(low, high)), (high - low, *inner)


def prefix(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the part of an array that has `shape` and begins at index 0, as a view."""
    if array.shape == shape:
        return array
    return array[tuple(slice(size) for size in shape)]


def borrowed(array: Array) -> Array:
    """Return an array over the same memory, without a reference that keeps it alive."""
    address = address_of(array)
    extent = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    nbytes = extent + array.itemsize if array.size else 0
    memory = memoryview((ctypes.c_char * nbytes).from_address(address))
    return np.ndarray(array.shape, array.dtype, memory, strides=array.strides)


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def lies_over(one: Array, other: Array) -> bool:
    """Tell whether two arrays have equal addresses and strides; lengths can differ."""
    return address_of(one) == address_of(other) and one.strides == other.strides


def place_of(array: Array) -> tuple[object, ...]:
    """Return the address, shape and strides of an array."""
    return address_of(array), array.shape, array.strides
