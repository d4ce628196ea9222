"""Layouts of a weight's bytes, and of its scales, before XNNPACK packs them."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.xnnpack.nodes import Dims, Tensor
from kvc.runtime.memory.arrays import Array
from kvc.schema.types import evaluate

PLAIN: Final = "plain"  # unchanged bytes, read as [out, in]
IN_OUT: Final = "in_out"  # unchanged bytes, read as [in, out]
BATCHES: Final = "batches"  # unchanged bytes, read as matrices [..., in, out]
BATCHES_TRANSPOSED: Final = "batches_transposed"  # unchanged bytes, as [..., out, in]
OHWI: Final = "ohwi"  # convolution: [out, height, width, in of a group]
HWO: Final = "hwo"  # depthwise convolution: [height, width, out]
_OHWI_OF_IOHW: Final = "ohwi of iohw, groups:"  # transposed convolution
ROWS: Final = "rows"  # row after row; `kvc::linear_qb4` interleaves eight

# Layouts with the bytes of the plain one. They are distinct, since XNNPACK packs them
# differently.
AS_THEY_ARE: Final = frozenset({PLAIN, IN_OUT, BATCHES, BATCHES_TRANSPOSED})


def ohwi_of_iohw(groups: int) -> str:
    """Return the layout for a transposed convolution's weight in `groups` groups."""
    return f"{_OHWI_OF_IOHW}{groups}"


def is_transposed(layout: str) -> bool:
    """Tell whether a layout is of a transposed convolution."""
    return layout.startswith(_OHWI_OF_IOHW)


def arrange(weight: Array, layout: str) -> Array:
    """Return a weight in a layout, contiguous; a weight in that layout is unchanged.

    Args:
        weight: the weight of a convolution, [out, in of a group, width] or [out, in of
            a group, height, width]; of a transposed convolution, [in, out of a group,
            ...]; an int4 weight, [out / 8, in / 8, 8, 4]; scales of an int4 weight,
            [out / 8, in / block, 8]; or an array that has the layout already.
        layout: the name of a layout that this module defines.
    """
    if layout in AS_THEY_ARE:
        return weight
    if layout == ROWS:
        return _rows(weight.view(np.uint32) if weight.ndim == 4 else weight)
    spatial = weight if weight.ndim == 4 else weight[:, :, None, :]
    if is_transposed(layout):
        # From [in, out of a group, ...] to [out, height, width, in of a group].
        groups = int(layout.removeprefix(_OHWI_OF_IOHW))
        inner, each, high, wide = spatial.shape
        apart = spatial.reshape(groups, inner // groups, each, high, wide)
        made = np.ascontiguousarray(apart.transpose(0, 2, 3, 4, 1))
        return made.reshape(groups * each, high, wide, inner // groups)
    order = (0, 2, 3, 1) if layout == OHWI else (1, 2, 3, 0)
    return np.ascontiguousarray(spatial.transpose(order))


def _rows(side_by_side: Array) -> Array:
    """Convert [out / 8, n, 8] to [out, n]; an element can be four bytes long."""
    groups, count, rows = side_by_side.shape[:3]
    turned = side_by_side.reshape(groups, count, rows).transpose(0, 2, 1)
    return np.ascontiguousarray(turned).reshape(groups * rows, count)


# Shapes of tensors, and their origin.


RESHAPES: Final = frozenset(
    {"static_reshape", "fuse_dims", "split_dim", "static_expand_dims"}
)


def unshaped(x: Tensor) -> Tensor:
    """Return the tensor that x is a reshape of, however often it was reshaped; or x."""
    while x.producer is not None and x.producer.function in RESHAPES:
        (x,) = x.producer.inputs
    return x


def order_of(x: Tensor) -> list[int] | None:
    """Return the axis order if x is the result of a transpose, otherwise None."""
    if x.producer is None or x.producer.function != "static_transpose":
        return None
    order = x.producer.arguments[1]
    assert isinstance(order, ctypes.Array)
    return list(order)


def broadcast(a: Dims, b: Dims) -> Dims:
    """Return the shape that two shapes broadcast to."""
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def size_array(sizes: Sequence[int]) -> "ctypes.Array[ctypes.c_size_t]":
    """Return sizes as a C array."""
    return (ctypes.c_size_t * len(sizes))(*sizes)


def signed_array(numbers: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """Return signed numbers as a C array."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


def shape_of(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape in which each symbolic dim is replaced by its number."""
    return tuple(evaluate(dim, sizes) for dim in dims)
