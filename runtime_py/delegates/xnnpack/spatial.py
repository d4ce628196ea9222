"""Resizing of planes.

Errors of interpolated values are within 2e-7 times the size of the plane, times the
range of its elements. All values that are interpolated from a NaN or an infinity become
NaN, even if this element has weight 0, or torch returns an infinity.
"""

from collections.abc import Mapping

import numpy as np

from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.functions import Binary
from kvc.runtime.delegates.xnnpack.nodes import Define, Dims, Tensor


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
    """Repeat each element along height and width, by a product with ones."""
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
    "aten::upsample_bilinear2d": _bilinear,
    "aten::upsample_nearest2d": _nearest,
}
