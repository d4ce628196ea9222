"""Functions of one value in float64; an NPU looks their results up in a table.

In: arrays of the first operand, and the operator's other arguments. Out: arrays of the
same shape.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvc.runtime.delegates.ethosu.numbers import table_of_lines
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder

Doubles = NDArray[np.float64]

_ERF: Final = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Doubles) -> Doubles:
    made: Doubles = 1 / (1 + np.exp(-x))
    return made


def _gelu(x: Doubles, approximate: str) -> Doubles:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        rough: Doubles = 0.5 * x * (1 + np.tanh(inner))
        return rough
    made: Doubles = 0.5 * x * (1 + _ERF(x / math.sqrt(2)))
    return made


def _elu(x: Doubles, alpha: float, scale: float, input_scale: float) -> Doubles:
    return scale * np.where(x > 0, x, alpha * np.expm1(x * input_scale))


def _clamp(x: Doubles, least: float | None, most: float | None) -> Doubles:
    return np.clip(
        x, -math.inf if least is None else least, math.inf if most is None else most
    )


FUNCTIONS: Final[Mapping[str, Callable[..., Doubles]]] = {
    "aten::abs": np.abs,
    "aten::add.Scalar": lambda x, other, alpha: x + other * alpha,
    "aten::clamp": _clamp,
    "aten::elu": _elu,
    "aten::exp": np.exp,
    "aten::gelu": _gelu,
    "aten::hardtanh": _clamp,
    "aten::leaky_relu": lambda x, slope: np.where(x > 0, x, x * slope),
    "aten::mul.Scalar": lambda x, other: x * other,
    "aten::neg": np.negative,
    "aten::relu": lambda x: np.maximum(x, 0),
    "aten::sigmoid": _sigmoid,
    "aten::silu": lambda x: x * _sigmoid(x),
    "aten::sub.Scalar": lambda x, other, alpha: x - other * alpha,
    "aten::tanh": np.tanh,
}


# Powers of an int32 of any size, by a table over its leading bits.


INVERSE_BITS, ROOT_BITS = 22, 21  # a result of 1 is 2 ** bits
_TOP: Final = 30  # the bit that represents a mantissa of 1
_INVERSE_ONE: Final = 1 << (INVERSE_BITS - 7)
_ROOT_ONE: Final = 1 << (ROOT_BITS - 7)
_HALF_PLACES: Final = 1 << 15


def inverse(builder: GraphBuilder, x: str) -> tuple[str, str]:
    """Return 1 / m in units of 2 ** -22, and the number of bits of a shift.

    x, a positive int32, is shifted left until the bit below the sign bit is set; m is
    the shifted number. The table's entry for m = 1 is 2 ** 15 - 1, since 2 ** 15
    exceeds int16.
    """
    moved = builder.with_number("SUB", builder.leading_zeros(x), 1)
    mantissa = builder.arithmetic("LOGICAL_LEFT_SHIFT", x, moved)
    middle = 3 << (_TOP - 1)  # 1.5
    place = _place(builder, mantissa, middle, _TOP - 16)
    entries = table_of_lines(
        lambda at: 1 / (1.5 + at / (2 * _HALF_PLACES)), 1.0, 1 / _INVERSE_ONE
    )
    return builder.table(place, entries), moved


def inverse_root(builder: GraphBuilder, x: str) -> tuple[str, str]:
    """Return m ** -0.5 in units of 2 ** -21, and half of the number of bits of a shift.

    x, a positive int32, is shifted left by an even number of bits, until at most one
    zero follows the sign bit; m is the shifted number.
    """
    moved = builder.with_number("SUB", builder.leading_zeros(x), 1)
    half = builder.with_number("ARITHMETIC_RIGHT_SHIFT", moved, 1)
    even = builder.arithmetic("ADD", half, half)
    mantissa = builder.arithmetic("LOGICAL_LEFT_SHIFT", x, even)
    place = _place(builder, mantissa, 1 << _TOP, _TOP - 15)
    entries = table_of_lines(
        lambda at: np.maximum(1 + at / _HALF_PLACES, 0.5) ** -0.5, 1.0, 1 / _ROOT_ONE
    )
    return builder.table(place, entries), half


def _place(builder: GraphBuilder, mantissa: str, middle: int, shift: int) -> str:
    """Return the table index of a mantissa, int16; the mantissa `middle` has index 0.

    The index is (mantissa - middle) / 2 ** shift.
    """
    off = builder.with_number("SUB", mantissa, middle)
    return builder.rescale(off, [(1 << 30, 30 + shift)], (0, 0), Element.INT16)
