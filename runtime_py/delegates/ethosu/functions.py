"""Functions of one value, in float64; an NPU looks their results up in a table.

In: arrays, and what else an operator takes. Out: arrays of the same shape.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
