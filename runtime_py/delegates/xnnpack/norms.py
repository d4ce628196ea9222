"""Norms, softmax and reductions.

A row with a NaN or an infinity gives NaN and infinities where torch gives them. Terms
of a sum are added in an order that differs from torch's, so results differ if terms
cancel or partial sums overflow.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.elementwise import not_numbers
from kvc.runtime.delegates.xnnpack.functions import Binary, Reduction, Unary
from kvc.runtime.delegates.xnnpack.nodes import Define, Dims, Tensor
from kvc.schema.types import Dim

_EPSILON = 2.0**-23  # torch's default for float32
_GREATEST = float(np.finfo(np.float32).max)


def _rms_norm(
    b: Builder,
    dims: Dims,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    eps: float | None,
) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, with the mean over the last dims.

    The dims are those of `shape`.
    """
    y = _normalized(b, x, shape, _EPSILON if eps is None else eps)
    return y if weight is None else b.binary(Binary.MULTIPLY, y, weight)


def _layer_norm(
    b: Builder,
    dims: Dims,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Subtract the mean, normalize like `_rms_norm`, and add a bias."""
    mean = b.reduce(Reduction.MEAN, x, _trailing(x, shape))
    y = _normalized(b, b.binary(Binary.SUBTRACT, x, mean), shape, eps)
    if weight is not None:
        y = b.binary(Binary.MULTIPLY, y, weight)
    return y if bias is None else b.binary(Binary.ADD, y, bias)


def _normalized(b: Builder, x: Tensor, shape: tuple[int, ...], eps: float) -> Tensor:
    power = b.reduce(Reduction.MEAN_OF_SQUARES, x, _trailing(x, shape))
    power = b.binary(Binary.ADD, power, b.scalar(eps))
    return b.binary(Binary.MULTIPLY, x, b.unary(Unary.RECIPROCAL_SQUARE_ROOT, power))


def _trailing(x: Tensor, shape: tuple[int, ...]) -> range:
    return range(len(x.dims) - len(shape), len(x.dims))


def _softmax(b: Builder, dims: Dims, x: Tensor, axis: int) -> Tensor:
    return b.softmax(x)


def _reduce(
    op: Reduction,
    b: Builder,
    dims: Dims,
    x: Tensor,
    axes: tuple[int, ...] | None,
    keep: bool,
) -> Tensor:
    """Reduce a tensor along `axes`, or along all axes if `axes` is None or empty."""
    return reduced(b, op, x, _chosen(x, axes), keep)


def _chosen(x: Tensor, axes: tuple[int, ...] | None) -> list[int]:
    rank = len(x.dims)
    return sorted({axis % rank for axis in axes or range(rank)})


def reduced(
    b: Builder, op: Reduction, x: Tensor, chosen: Sequence[int], keep: bool
) -> Tensor:
    """Reduce a tensor along `chosen` axes; a NaN among the elements gives NaN.

    `chosen` is ascending and not negative.
    """
    y = b.reduce(op, x, chosen, keep)
    if op in (Reduction.MAX, Reduction.MIN):
        # These lose NaN, which a sum keeps. The sum is subtracted, so that -0.0 stays
        # -0.0.
        lost = b.reduce(Reduction.SUM, not_numbers(b, x), chosen, keep)
        y = b.binary(Binary.SUBTRACT, y, lost)
    return y


def _vector_norm(
    b: Builder,
    dims: Dims,
    x: Tensor,
    order: float,
    axes: tuple[int, ...] | None,
    keep: bool,
) -> Tensor:
    """Return the root of the sum of squares; for a single element, its absolute value.

    The library's root is right only up to a quarter of the greatest float.
    """
    chosen = _chosen(x, axes)
    if all(x.dims[axis] == 1 for axis in chosen):
        return b.reshape(b.unary(Unary.ABS, x), dims)
    power = b.reduce(Reduction.SUM_OF_SQUARES, x, chosen, keep)
    finite = b.clamp(power, 0, _GREATEST)
    root = b.unary(Unary.SQUARE_ROOT, b.binary(Binary.MULTIPLY, finite, b.scalar(0.25)))
    infinite = b.binary(Binary.SUBTRACT, power, finite)
    return b.binary(Binary.ADD, b.binary(Binary.MULTIPLY, root, b.scalar(2)), infinite)


def _variance_and_mean(
    b: Builder,
    dims: Dims,
    x: Tensor,
    axes: tuple[int, ...] | None,
    correction: float | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    chosen = _chosen(x, axes)
    mean = b.reduce(Reduction.MEAN, x, chosen)
    apart = b.binary(Binary.SUBTRACT, x, mean)
    power = b.reduce(Reduction.MEAN_OF_SQUARES, apart, chosen, keep)
    count = _count([x.dims[axis] for axis in chosen])
    less = 1 if correction is None else correction
    if less:
        power = b.binary(Binary.MULTIPLY, power, b.scalar(count / (count - less)))
    return power, b.reshape(mean, dims)


def _count(sizes: Sequence[Dim]) -> int:
    """Return the product of sizes, all of which are numbers."""
    count = 1
    for size in sizes:
        assert isinstance(size, int)
        count *= size
    return count


def _variance(b: Builder, dims: Dims, x: Tensor, *settings: object) -> Tensor:
    return _variance_and_mean(b, dims, x, *settings)[0]  # type: ignore[arg-type]  # as the op has them


def _batch_norm(
    b: Builder,
    dims: Dims,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Tensor:
    """Scale and shift each channel of x [batch, channels, ...], as torch does."""
    power = b.binary(Binary.ADD, variance, b.scalar(eps))
    factor = b.unary(Unary.RECIPROCAL_SQUARE_ROOT, power)
    if weight is not None:
        factor = b.binary(Binary.MULTIPLY, factor, weight)
    shift = b.unary(Unary.NEGATE, b.binary(Binary.MULTIPLY, mean, factor))
    if bias is not None:
        shift = b.binary(Binary.ADD, shift, bias)
    return _by_channel(b, x, factor, shift)


def _by_channel(
    b: Builder, x: Tensor, factor: Tensor | None, shift: Tensor | None
) -> Tensor:
    """Scale and shift x [batch, channels, ...] by vectors [channels]."""
    shape = (x.dims[1], *[1] * (len(x.dims) - 2))
    for op, vector in ((Binary.MULTIPLY, factor), (Binary.ADD, shift)):
        if vector is not None:
            x = b.binary(op, x, b.reshape(vector, shape))
    return x


def _group_norm(
    b: Builder,
    dims: Dims,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalize each group of channels of x [batch, channels, ...]."""
    count = _count(dims[1:]) // groups
    rows = b.reshape(x, (dims[0], groups, count))
    mean = b.reduce(Reduction.MEAN, rows, [2])
    y = _normalized(b, b.binary(Binary.SUBTRACT, rows, mean), (count,), eps)
    return _by_channel(b, b.reshape(y, dims), weight, bias)


_REDUCTIONS = {
    "sum.dim_IntList": Reduction.SUM,
    "mean.dim": Reduction.MEAN,
    "amax": Reduction.MAX,
    "amin": Reduction.MIN,
}

DEFINITIONS: Mapping[str, Define] = {
    **{f"aten::{name}": partial(_reduce, op) for name, op in _REDUCTIONS.items()},
    "aten::batch_norm": _batch_norm,
    "aten::group_norm": _group_norm,
    "aten::layer_norm": _layer_norm,
    "aten::linalg_vector_norm": _vector_norm,
    "aten::rms_norm": _rms_norm,
    "aten::softmax.int": _softmax,
    "aten::var.correction": _variance,
    "aten::var_mean.correction": _variance_and_mean,
}
