"""Translate views, concatenations and copies, which move elements unchanged.

A chain of views that all keep the order of the elements becomes one reshape. Any other
view becomes a copy.
"""

from collections.abc import Mapping

import numpy as np

from kvc.runtime.delegates.xnnpack.builder import MAX_PARTS, Builder
from kvc.runtime.delegates.xnnpack.functions import Binary
from kvc.runtime.delegates.xnnpack.layouts import shape_of
from kvc.runtime.delegates.xnnpack.nodes import Define, Dims, Tensor
from kvc.schema.types import Dim, add_dims, count_from_front


def _reshape(b: Builder, dims: Dims, x: Tensor, *_: object) -> Tensor:
    return b.reshape(x, dims)


def _clone(b: Builder, dims: Dims, x: Tensor) -> Tensor:
    return x


def _transpose(b: Builder, dims: Dims, x: Tensor, first: int, second: int) -> Tensor:
    order = list(range(len(x.dims)))
    order[first], order[second] = order[second], order[first]
    return b.transpose(x, order)


def _permute(b: Builder, dims: Dims, x: Tensor, order: tuple[int, ...]) -> Tensor:
    return b.transpose(x, [axis % len(order) for axis in order])


def _slice(
    b: Builder,
    dims: Dims,
    x: Tensor,
    axis: int,
    start: Dim | None,
    end: Dim | None,
    step: int,
) -> Tensor:
    axis %= len(x.dims)
    size = x.dims[axis]
    return _part(b, x, axis, start or 0, size if end is None else end, dims[axis])


def _select(b: Builder, dims: Dims, x: Tensor, axis: int, index: Dim) -> Tensor:
    axis %= len(x.dims)
    start = count_from_front(index, x.dims[axis])
    return b.reshape(_part(b, x, axis, start, add_dims(start, 1), 1), dims)


def _part(b: Builder, x: Tensor, axis: int, start: Dim, end: Dim, size: Dim) -> Tensor:
    """Return the elements of an axis from `start` to `end`; `size` is their number."""
    whole = x.dims[axis]
    if size == whole:
        return x
    begin = _begin(count_from_front(start, whole), whole)
    return b.slice(x, axis, begin, _end(count_from_front(end, whole), whole), size)


def _begin(place: Dim, size: Dim) -> int:
    """Return the library's number for a slice that begins at index `place` of an axis.

    If `place` depends on symbols, the number is negative and counts from the axis's
    end. `size` is the size of the axis.
    """
    if isinstance(place, int):
        return max(place, 0)
    back = add_dims(place, size, -1)
    assert isinstance(back, int), f"a slice from {place} on an axis of {size}"
    return back


def _end(place: Dim, size: Dim) -> int:
    """Return the library's number for a slice that ends before index `place`.

    If `place` depends on symbols, the number is 0 or negative and counts from the
    axis's end. `size` is the size of the axis.
    """
    if isinstance(place, int):
        return place
    back = add_dims(place, size, -1)
    assert isinstance(back, int), f"a slice up to {place} on an axis of {size}"
    return min(back, 0)


def _split(
    b: Builder, dims: Dims, x: Tensor, sizes: tuple[Dim, ...], axis: int
) -> tuple[Tensor, ...]:
    axis %= len(x.dims)
    even = isinstance(x.dims[axis], int) and len(set(sizes)) == 1
    if even and 1 < len(sizes) <= MAX_PARTS:
        return b.split(x, axis, len(sizes))
    place: Dim = 0
    parts = []
    for size in sizes:
        after = add_dims(place, size)
        parts.append(_part(b, x, axis, place, after, size))
        place = after
    return tuple(parts)


def _cat(b: Builder, dims: Dims, tensors: tuple[Tensor, ...], axis: int) -> Tensor:
    return b.join(tensors, axis % len(dims))


def _stack(b: Builder, dims: Dims, tensors: tuple[Tensor, ...], axis: int) -> Tensor:
    axis %= len(dims)
    single = (*dims[:axis], 1, *dims[axis + 1 :])
    return b.join([b.reshape(each, single) for each in tensors], axis)


def _expand(b: Builder, dims: Dims, x: Tensor, _: object) -> Tensor:
    """Repeat a tensor along axes of size 1, by a product with ones that broadcasts."""
    padded = (1,) * (len(dims) - len(x.dims)) + x.dims
    if padded == dims:
        return b.reshape(x, dims)
    repeats = tuple(
        1 if old == new else new for old, new in zip(padded, dims, strict=True)
    )
    ones = np.ones(shape_of(repeats, {}), np.float32)
    return b.binary(Binary.MULTIPLY, x, b.literal(ones))


def _pad(
    b: Builder, dims: Dims, x: Tensor, widths: tuple[int, ...], value: float
) -> Tensor:
    """Pad a tensor; `widths` has (before, after) for each axis, the last one first."""
    missing = len(x.dims) - len(widths) // 2
    before = [*[0] * missing, *widths[0::2][::-1]]
    after = [*[0] * missing, *widths[1::2][::-1]]
    return b.pad(x, before, after, value)


DEFINITIONS: Mapping[str, Define] = {
    "aten::alias": _reshape,
    "aten::cat": _cat,
    "aten::clone": _clone,
    "aten::constant_pad_nd": _pad,
    "aten::expand": _expand,
    "aten::permute": _permute,
    "aten::reshape": _reshape,
    "aten::select.int": _select,
    "aten::slice.Tensor": _slice,
    "aten::split_with_sizes": _split,
    "aten::squeeze.dims": _reshape,
    "aten::stack": _stack,
    "aten::transpose.int": _transpose,
    "aten::unsqueeze": _reshape,
    "aten::view": _reshape,
}
