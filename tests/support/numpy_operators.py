"""Operators of one or two arrays, by name, which fake devices compute with numpy.

Results have the dtype of their operands, or bool. A device may have other names for
some of these, and more operators of its own.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

Array = np.ndarray


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array, tanh: bool) -> Array:
    if not tanh:
        return (x * (1 + erf(x / math.sqrt(2))) / 2).astype(x.dtype)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return (x * (1 + np.tanh(inner)) / 2).astype(x.dtype)


def softmax(x: Array, axis: int) -> Array:
    made = np.exp(x - x.max(axis, keepdims=True))
    return made / made.sum(axis, keepdims=True)


def _of_numpy(names: str) -> dict[str, Callable[..., Array]]:
    return {name: getattr(np, name) for name in names.split()}


ONE: Mapping[str, Callable[[Array], Array]] = {
    **_of_numpy("abs ceil cos exp floor log sin sqrt tanh"),
    "erf": erf,
    "neg": np.negative,
    "not": np.logical_not,
    "reciprocal": lambda x: 1 / x,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "sigmoid": lambda x: sigmoid(x).astype(x.dtype),
    "silu": lambda x: (x / (1 + np.exp(-x))).astype(x.dtype),
}
TWO: Mapping[str, Callable[[Array, Array], Array]] = {
    **_of_numpy("equal not_equal greater greater_equal less less_equal matmul"),
    **_of_numpy("add divide maximum minimum power"),
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
