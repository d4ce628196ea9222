"""Elementwise operators of one and two operands.

The table at the end has a function for each operator. The function takes the builder,
the result's dims and the operator's arguments; it records the operator's nodes and
returns the result.

NaN stays NaN. Infinities are as in torch, except for two operators: the logarithm of
infinity is 88.4 or infinite, and sigmoid beyond -1e20 and 1e20 is right or NaN; which
one depends on the processor. Relative errors are within 5e-7, with these exceptions:
exp of numbers beyond -5 and 5 (5e-6), which is infinite from 88.37 on, where float32
goes to 88.72; log near 1 (5e-7 absolute); gelu (1e-6 absolute); roots of more than
8.5e37 and logarithms of more than 2.4e38, which are wrong; sigmoid below -76, which is
2e-33 or less (measured on AVX2 and AVX-512).

Sine, cosine and copysign are not computed by the library: its sine and cosine are
1.6e-5 off at 1e7 and arbitrary from 1e9 on (up to 547), and its copysign loses the sign
of a zero.
"""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.functions import Binary, Unary
from kvc.runtime.delegates.xnnpack.nodes import Define, Dims, Tensor

Number = int | float
Operand = Tensor | Number


def _unary(op: Unary, b: Builder, dims: Dims, x: Tensor) -> Tensor:
    return b.unary(op, x)


def _binary(op: Binary, b: Builder, dims: Dims, x: Tensor, other: Operand) -> Tensor:
    return b.binary(op, x, other if isinstance(other, Tensor) else b.scalar(other))


def _extreme(op: Binary, b: Builder, dims: Dims, x: Tensor, other: Tensor) -> Tensor:
    """Return the maximum or minimum of two operands.

    XNNPACK's operator can lose a NaN, so NaN is restored afterwards.
    """
    y = b.binary(op, x, other)
    for each in (x, other):  # weights may hold NaN, too
        y = _kept(b, y, each)
    return y


def _keeping(op: Unary, b: Builder, dims: Dims, x: Tensor) -> Tensor:
    """Apply an operator that in the library loses NaN; put NaN back afterwards."""
    return _kept(b, b.unary(op, x), x)


def _kept(b: Builder, y: Tensor, x: Tensor) -> Tensor:
    """Return y, but NaN wherever x is NaN.

    y is multiplied by 1 or NaN, since a product keeps the sign of a zero.
    """
    return b.binary(Binary.MULTIPLY, y, b.clamp(x, 1, 1))


def not_numbers(b: Builder, x: Tensor) -> Tensor:
    """Return NaN where x is NaN and zero elsewhere, by clipping, which keeps NaN."""
    return b.clamp(x, 0, 0)


def _scaled(
    op: Binary, b: Builder, dims: Dims, x: Tensor, other: Operand, alpha: Number
) -> Tensor:
    """Return x + alpha * other if `op` adds, or x - alpha * other if `op` subtracts."""
    return b.binary(op, x, _times(b, other, alpha))


def _rsub(b: Builder, dims: Dims, x: Tensor, other: Number, alpha: Number) -> Tensor:
    return b.binary(Binary.SUBTRACT, b.scalar(other), _times(b, x, alpha))


def _times(b: Builder, x: Operand, factor: Number) -> Tensor:
    if not isinstance(x, Tensor):
        return b.scalar(float(np.float32(x) * np.float32(factor)))
    return x if factor == 1 else b.binary(Binary.MULTIPLY, x, b.scalar(factor))


def _root(b: Builder, dims: Dims, x: Tensor) -> Tensor:
    """Take the square root of each element.

    XNNPACK gives NaN for infinity. So x is first limited to the greatest float, and
    what was cut off is put back afterwards. It is subtracted, not added, so that the
    root of -0.0 stays -0.0.
    """
    finite = b.clamp(x, -math.inf, float(np.finfo(np.float32).max))
    less = b.binary(Binary.SUBTRACT, finite, x)
    return b.binary(Binary.SUBTRACT, b.unary(Unary.SQUARE_ROOT, finite), less)


def _reciprocal_root(b: Builder, dims: Dims, x: Tensor) -> Tensor:
    """Divide 1 by the square root: the library's reciprocal root of 0 is NaN."""
    return _reciprocal(b, dims, _root(b, dims, x))


def _reciprocal(b: Builder, dims: Dims, x: Tensor) -> Tensor:
    return b.binary(Binary.DIVIDE, b.scalar(1), x)


def _silu(b: Builder, dims: Dims, x: Tensor) -> Tensor:
    return b.binary(Binary.MULTIPLY, x, b.unary(Unary.SIGMOID, x))


def _gelu(b: Builder, dims: Dims, x: Tensor, approximate: str) -> Tensor:
    exact = approximate == "none"
    return b.unary(Unary.GELU if exact else Unary.APPROXIMATE_GELU, x)


def _relu(b: Builder, dims: Dims, x: Tensor) -> Tensor:
    return b.clamp(x, 0, math.inf)


def _clamp(
    b: Builder, dims: Dims, x: Tensor, least: Number | None, greatest: Number | None
) -> Tensor:
    """Clip each element to bounds; None means no bound, and no bound is NaN."""
    low = -math.inf if least is None else least
    return b.clamp(x, low, math.inf if greatest is None else greatest)


def _clamp_by_tensors(
    b: Builder, dims: Dims, x: Tensor, least: Tensor | None, greatest: Tensor | None
) -> Tensor:
    for op, bound in ((Binary.MAXIMUM, least), (Binary.MINIMUM, greatest)):
        if bound is not None:
            x = _extreme(op, b, dims, x, bound)
    return x


def _truncate(b: Builder, dims: Dims, x: Tensor) -> Tensor:
    """Round towards 0: the ceiling of min(x, 0) minus the ceiling of min(-x, 0).

    So a zero keeps its sign; a sum of two parts would lose it.
    """
    up, other = (
        b.unary(Unary.CEILING, b.clamp(each, -math.inf, 0))
        for each in (x, b.unary(Unary.NEGATE, x))
    )
    return b.binary(Binary.SUBTRACT, up, other)


def _leaky_relu(b: Builder, dims: Dims, x: Tensor, slope: Number) -> Tensor:
    return b.unary(Unary.LEAKY_RELU, x, slope)


def _elu(
    b: Builder, dims: Dims, x: Tensor, alpha: Number, scale: Number, inner: Number
) -> Tensor:
    return b.unary(Unary.ELU, x, alpha)


def _power(b: Builder, dims: Dims, x: Tensor, exponent: Number) -> Tensor:
    """Raise each element to an exponent for which a few simpler nodes are enough."""
    match exponent:
        case 2:
            return b.unary(Unary.SQUARE, x)
        case 3:
            return b.binary(Binary.MULTIPLY, b.unary(Unary.SQUARE, x), x)
        case 0.5:
            return _root(b, dims, x)
        case -0.5:
            return _reciprocal_root(b, dims, x)
    return _reciprocal(b, dims, x)


_ALONE = {
    "abs": Unary.ABS,
    "ceil": Unary.CEILING,
    "floor": Unary.FLOOR,
    "neg": Unary.NEGATE,
    "round": Unary.ROUND_TO_EVEN,
    "sigmoid": Unary.SIGMOID,
    "tanh": Unary.TANH,
}
_PAIRS = {
    "mul.Tensor": Binary.MULTIPLY,
    "mul.Scalar": Binary.MULTIPLY,
    "div.Tensor": Binary.DIVIDE,
    "div.Scalar": Binary.DIVIDE,
}
_SCALED = {
    "add.Tensor": Binary.ADD,
    "add.Scalar": Binary.ADD,
    "sub.Tensor": Binary.SUBTRACT,
    "sub.Scalar": Binary.SUBTRACT,
}

DEFINITIONS: Mapping[str, Define] = {
    **{f"aten::{name}": partial(_unary, op) for name, op in _ALONE.items()},
    **{f"aten::{name}": partial(_binary, op) for name, op in _PAIRS.items()},
    **{f"aten::{name}": partial(_scaled, op) for name, op in _SCALED.items()},
    "aten::clamp": _clamp,
    "aten::clamp.Tensor": _clamp_by_tensors,
    "aten::exp": partial(_keeping, Unary.EXP),
    "aten::log": partial(_keeping, Unary.LOG),
    "aten::maximum": partial(_extreme, Binary.MAXIMUM),
    "aten::minimum": partial(_extreme, Binary.MINIMUM),
    "aten::elu": _elu,
    "aten::gelu": _gelu,
    "aten::hardtanh": _clamp,
    "aten::leaky_relu": _leaky_relu,
    "aten::pow.Tensor_Scalar": _power,
    "aten::reciprocal": _reciprocal,
    "aten::relu": _relu,
    "aten::rsqrt": _reciprocal_root,
    "aten::sqrt": _root,
    "aten::rsub.Scalar": _rsub,
    "aten::silu": _silu,
    "aten::trunc": _truncate,
}
