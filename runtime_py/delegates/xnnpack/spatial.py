"""Pooling of windows side by side, and resizing.

The library's own pooling loses NaN. Windows that do not overlap are axes here, which
are reduced: a plane [height, width] is read as [rows, high, columns, wide].

Interpolated values are within 2e-7 of exact ones times the size of the plane and its
spread. A NaN or an infinity becomes NaN in all that is interpolated from it, even where
its share is 0, or torch has an infinity.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.functions import Binary, Reduction
from kvc.runtime.delegates.xnnpack.nodes import Define, Dims, Tensor
from kvc.runtime.delegates.xnnpack.norms import reduced


def _pool(
    op: Reduction,
    b: Builder,
    dims: Dims,
    x: Tensor,
    kernel: tuple[int, int],
    *_: object,
) -> Tensor:
    return _windows(op, b, dims, x, kernel)


def _adaptive(op: Reduction, b: Builder, dims: Dims, x: Tensor, _: object) -> Tensor:
    (high, down), (wide, across) = zip(x.dims[-2:], dims[-2:], strict=True)
    assert isinstance(high, int)
    assert isinstance(wide, int)
    assert isinstance(down, int)
    assert isinstance(across, int)
    return _windows(op, b, dims, x, (high // down, wide // across))


def _windows(
    op: Reduction, b: Builder, dims: Dims, x: Tensor, kernel: tuple[int, int]
) -> Tensor:
    """Reduce windows [high, wide] of x [..., height, width]."""
    lead, (rows, columns), (high, wide) = dims[:-2], dims[-2:], kernel
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    for axis, used in ((len(lead), rows * high), (len(lead) + 1, columns * wide)):
        if x.dims[axis] != used:  # what is left over at the end
            x = b.slice(x, axis, 0, used, used)
    if rows == columns == 1:
        return reduced(b, op, x, [len(lead), len(lead) + 1], keep=True)
    tiles = b.reshape(x, (*lead, rows, high, columns, wide))
    y = reduced(b, op, tiles, [len(lead) + 1, len(lead) + 3], keep=True)
    return b.reshape(y, dims)


def _indexed(
    define: Define, b: Builder, dims: Dims, *arguments: object
) -> tuple[Tensor, ...]:
    """Stand for indices, which nothing reads, by the elements."""
    made = define(b, dims, *arguments)
    assert isinstance(made, Tensor)
    return made, made


def _bilinear(
    b: Builder,
    dims: Dims,
    x: Tensor,
    size: tuple[int, int],
    corners: bool,
    *_: object,
) -> Tensor:
    if x.dims == dims:
        return x
    turned = b.transpose(x, [0, 2, 3, 1])
    made = (dims[0], *dims[2:], dims[1])
    return b.transpose(b.resize(turned, size, corners, made), [0, 3, 1, 2])


def _nearest(b: Builder, dims: Dims, x: Tensor, *_: object) -> Tensor:
    """Repeat each element, times 1, along two new axes."""
    batch, channels, high, wide = x.dims
    down, across = dims[2:]
    assert isinstance(high, int)
    assert isinstance(wide, int)
    assert isinstance(down, int)
    assert isinstance(across, int)
    ones = np.ones((1, 1, 1, down // high, 1, across // wide), np.float32)
    apart = b.reshape(x, (batch, channels, high, 1, wide, 1))
    return b.reshape(b.binary(Binary.MULTIPLY, apart, b.literal(ones)), dims)


DEFINITIONS: Mapping[str, Define] = {
    "aten::_adaptive_avg_pool2d": partial(_adaptive, Reduction.MEAN),
    "aten::adaptive_max_pool2d": partial(_indexed, partial(_adaptive, Reduction.MAX)),
    "aten::avg_pool2d": partial(_pool, Reduction.MEAN),
    "aten::max_pool2d_with_indices": partial(_indexed, partial(_pool, Reduction.MAX)),
    "aten::upsample_bilinear2d": _bilinear,
    "aten::upsample_nearest2d": _nearest,
}
