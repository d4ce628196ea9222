"""Norms, softmax and reductions.

NaN and infinities spread through a row as in torch. Sums are taken in another order;
where they cancel or overflow on the way, so do the results.
"""

from collections.abc import Mapping
from functools import partial

from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.elementwise import not_numbers
from kvc.runtime.delegates.xnnpack.functions import Binary, Reduction, Unary
from kvc.runtime.delegates.xnnpack.nodes import Define, Dims, Tensor

_EPSILON = 2.0**-23  # what torch takes for float32 where none is given


def _rms_norm(
    b: Builder,
    dims: Dims,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    eps: float | None,
) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, the mean over trailing dims."""
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
    """Do as `_rms_norm` with x less its mean; add a bias."""
    mean = b.reduce(Reduction.MEAN, x, _trailing(x, shape))
    y = _normalized(b, b.binary(Binary.SUBTRACT, x, mean), shape, eps)
    if weight is not None:
        y = b.binary(Binary.MULTIPLY, y, weight)
    return y if bias is None else b.binary(Binary.ADD, y, bias)


def _normalized(b: Builder, x: Tensor, shape: tuple[int, ...], eps: float) -> Tensor:
    power = b.reduce(Reduction.MEAN_OF_SQUARES, x, _trailing(x, shape))
    power = b.binary(Binary.ADD, power, b.scalar(eps))
    factor = b.unary(Unary.RECIPROCAL_SQUARE_ROOT, power)
    return b.binary(Binary.MULTIPLY, x, factor)


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
    """Reduce axes, all of them where none is named."""
    rank = len(x.dims)
    chosen = sorted({axis % rank for axis in axes or range(rank)})
    y = b.reduce(op, x, chosen, keep)
    if op in (Reduction.MAX, Reduction.MIN):
        # These lose NaN, which a sum keeps.
        lost = b.reduce(Reduction.SUM, not_numbers(b, x), chosen, keep)
        y = b.binary(Binary.ADD, y, lost)
    return y


_REDUCTIONS = {
    "sum.dim_IntList": Reduction.SUM,
    "mean.dim": Reduction.MEAN,
    "amax": Reduction.MAX,
    "amin": Reduction.MIN,
}

DEFINITIONS: Mapping[str, Define] = {
    **{f"aten::{name}": partial(_reduce, op) for name, op in _REDUCTIONS.items()},
    "aten::layer_norm": _layer_norm,
    "aten::rms_norm": _rms_norm,
    "aten::softmax.int": _softmax,
}
