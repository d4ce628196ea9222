"""Convolutions and transposed convolutions along one or two axes, of constant weights.

In the library's layout, channels are the last axis, so transposes are added before and
after each node. A convolution along one axis becomes a convolution along two axes, the
first of size 1.

NaN and infinities are as in torch, except in depthwise convolutions whose kernel size
is not 3, 4, 9 or 25. There, windows that end just before a NaN or an infinity of the
input become NaN too, since the library multiplies that element by 0.
"""

from collections.abc import Mapping

from kvc.runtime.delegates.xnnpack import layouts
from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.nodes import Constant, Define, Dims, Tensor
from kvc.runtime.delegates.xnnpack.products import weight_of


def _convolution(
    b: Builder,
    dims: Dims,
    x: Tensor,
    weight: Constant,
    bias: Constant | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Convolve x [batch, channels, ...] by a weight [out, channels of a group, ...]."""
    out, each, *kernel = weight.dims
    assert isinstance(out, int)
    high, wide = _pair(tuple(kernel), 1)
    down, across = _pair(padding, 0)
    window = (down, across, down, across, high, wide)
    steps = (*_pair(stride, 1), *_pair(dilation, 1))
    alone = each == 1 and groups > 1
    if alone:
        channels: Dims = (out // groups, groups)
        packed = weight_of("float32", weight, (1, high, wide, out), bias, layouts.HWO)
    else:
        channels = (groups, each, out // groups)
        shape = (out, high, wide, each)
        packed = weight_of("float32", weight, shape, bias, layouts.OHWI)
    numbers, flat = (*window, *steps, *channels), (dims[0], *_pair(dims[2:], 1), out)
    name = "depthwise_convolution_2d" if alone else "convolution_2d"
    y = b.convolution(name, numbers, _channels_last(b, x), packed, bias, flat)
    return _channels_second(b, y, dims)


def _transposed(
    b: Builder,
    dims: Dims,
    x: Tensor,
    weight: Constant,
    bias: Constant | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    added: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> Tensor:
    """Return a transposed convolution of x [batch, channels, ...].

    For each element of x, a weight [in, out of a group, ...] times the element is added
    to the result.
    """
    inner, each, *kernel = weight.dims
    assert isinstance(inner, int)
    assert isinstance(each, int)
    high, wide = _pair(tuple(kernel), 1)
    down, across = _pair(padding, 0)
    window = (down, across, down, across, *_pair(added, 0), high, wide)
    steps = (*_pair(stride, 1), *_pair(dilation, 1))
    numbers = (*window, *steps, groups, inner // groups, each)
    shape = (groups * each, high, wide, inner // groups)
    packed = weight_of("float32", weight, shape, bias, layouts.ohwi_of_iohw(groups))
    flat = (dims[0], *_pair(dims[2:], 1), groups * each)
    x = _channels_last(b, x)
    y = b.convolution("deconvolution_2d", numbers, x, packed, bias, flat)
    return _channels_second(b, y, dims)


def _channels_last(b: Builder, x: Tensor) -> Tensor:
    """Convert x [batch, channels, ...] to [batch, height, width, channels]."""
    turned = b.transpose(x, [0, *range(2, len(x.dims)), 1])
    dims = turned.dims
    return b.reshape(turned, (dims[0], *_pair(dims[1:-1], 1), dims[-1]))


def _channels_second(b: Builder, y: Tensor, dims: Dims) -> Tensor:
    """Convert y [batch, height, width, channels] to [batch, channels, ...]."""
    y = b.reshape(y, (dims[0], *dims[2:], dims[1]))
    return b.transpose(y, [0, len(dims) - 1, *range(1, len(dims) - 1)])


def _pair(numbers: Dims, missing: int) -> Dims:
    """Return numbers for height and width, from the numbers for one axis or for two.

    `missing` is the number for the height if there is only one axis.
    """
    return numbers if len(numbers) == 2 else (missing, *numbers)


DEFINITIONS: Mapping[str, Define] = {
    "aten::conv_transpose1d": _transposed,
    "aten::conv_transpose2d.input": _transposed,
    "aten::convolution": _convolution,
}
