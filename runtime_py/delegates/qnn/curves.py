"""Sigmoid, SiLU, GELU, exponential and softmax in float16, by tanh and exponentials.

In: an emitter of float16, the name of a tensor. Out: nodes. The device's own `Sigmoid`,
`Gelu` and `Softmax` are off by more than a rounding error; its `Tanh`, and its `Exp` of
small numbers, are not (measured on the device's emulator). Models on integers use the
device's own `Sigmoid`, `Gelu` and `Softmax`: on integers these operators are exact to a
few steps of the grid, and need fewer nodes.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kvc.runtime.delegates.qnn.emitting import Emitter

# The emulator's exponential is NaN above 11.09, and for numbers such as -300.
EXPONENTS: Final = -20.0, 11.0859375  # their powers: 0 and 65248
# gelu(x) = x / 2 (1 + tanh(x (a + b x^2 + ...))). The first polynomial is exact, since
# the polynomial defines "gelu_tanh". The second is a least-squares fit to the error
# function, by the effect on the result: 3e-5 at most, a sixteenth of a rounding near 1.
_ROOT: Final = math.sqrt(2 / math.pi)
_GELUS: Final = {
    "gelu_tanh": (_ROOT, _ROOT * 0.044715),
    "gelu": (0.797457904, 0.0370509492, -0.000358852354),
}
_FAR: Final = 4.0  # beyond -4 and 4, GELU rounds to 0 and x; the fit fails at 7


def sigmoid(emitter: Emitter, x: str, output: str) -> str:
    """Add nodes for (1 + tanh(x / 2)) / 2."""
    shape = emitter.shapes[x]
    half = emitter.number(f"{output}_half", 0.5)
    y = emitter.node("Mul", (x, half), f"{output}_halved", shape)
    y = emitter.node("Tanh", (y,), f"{output}_tanh", shape)
    y = emitter.node("Mul", (y, half), f"{output}_shrunk", shape)
    return emitter.node("Add", (y, half), output, shape)


def silu(emitter: Emitter, x: str, output: str) -> str:
    """Add nodes for x / 2 (1 + tanh(x / 2))."""
    half = emitter.number(f"{output}_half", 0.5)
    y = emitter.node("Mul", (x, half), f"{output}_halved", emitter.shapes[x])
    return _opened(emitter, y, y, output)


def gelu(emitter: Emitter, x: str, output: str, kind: str) -> str:
    """Add nodes for the activation `kind` of `x`: "gelu" or "gelu_tanh"."""
    shape = emitter.shapes[x]
    kept = bounded(emitter, x, (-_FAR, _FAR), output)
    square = emitter.node("Mul", (kept, kept), f"{output}_square", shape)
    *lower, y = (
        emitter.number(f"{output}_factor{i}", f) for i, f in enumerate(_GELUS[kind])
    )
    for i, factor in reversed([*enumerate(lower)]):
        y = emitter.node("Mul", (square, y), f"{output}_times{i}", shape)
        y = emitter.node("Add", (y, factor), f"{output}_sum{i}", shape)
    y = emitter.node("Mul", (kept, y), f"{output}_inner", shape)
    half = emitter.number(f"{output}_half", 0.5)
    halved = emitter.node("Mul", (x, half), f"{output}_halved", shape)
    return _opened(emitter, halved, y, output)


def _opened(emitter: Emitter, halved: str, inner: str, output: str) -> str:
    """Add nodes for halved + halved tanh(inner)."""
    shape = emitter.shapes[halved]
    y = emitter.node("Tanh", (inner,), f"{output}_tanh", shape)
    y = emitter.node("Mul", (halved, y), f"{output}_turned", shape)
    return emitter.node("Add", (y, halved), output, shape)


def bounded(emitter: Emitter, x: str, ends: tuple[float, float], output: str) -> str:
    """Add nodes that clip a tensor to a range."""
    for op, key, end in (("Max", "least", ends[0]), ("Min", "most", ends[1])):
        number = emitter.number(f"{output}_{key}", end)
        x = emitter.node(op, (x, number), f"{output}_not_{key}", emitter.shapes[x])
    return x


def exponential(emitter: Emitter, x: str, output: str) -> str:
    """Add nodes for e^x, with x clipped so that float16 can represent the result."""
    kept = bounded(emitter, x, EXPONENTS, output)
    return emitter.node("Exp", (kept,), output, emitter.shapes[x])


def softmax(emitter: Emitter, x: str, output: str, seeing: str | None = None) -> str:
    """Add nodes for a softmax along the last axis.

    The greatest exponent of a row is first subtracted from the whole row. The softmax
    multiplies by a reciprocal, which is off by one rounding: a quotient of two tensors
    is off by three roundings if the divisor has one column (measured on the emulator).

    Args:
        emitter: collects the nodes.
        x: exponents [..., columns].
        output: the name of the result.
        seeing: factor [..., 1] on each row of the result; None for no factor.
    """
    shape = emitter.shapes[x]
    row, along = (*shape[:-1], 1), emitter.integers(f"{output}_axes", [-1])
    most = emitter.node("ReduceMax", (x, along), f"{output}_most", row, keepdims=1)
    y = emitter.node("Sub", (x, most), f"{output}_below", shape)
    least = emitter.number(f"{output}_least", EXPONENTS[0])
    y = emitter.node("Max", (y, least), f"{output}_exponents", shape)
    y = emitter.node("Exp", (y,), f"{output}_powers", shape)
    total = emitter.node("ReduceSum", (y, along), f"{output}_total", row, keepdims=1)
    share = emitter.node("Reciprocal", (total,), f"{output}_share", row)
    if seeing is not None:
        share = emitter.node("Mul", (share, seeing), f"{output}_counted", row)
    return emitter.node("Mul", (y, share), output, shape)


CURVES: Final[Mapping[str, Callable[..., str]]] = {
    "exp": exponential,
    "sigmoid": sigmoid,
    "silu": silu,
    "gelu": partial(gelu, kind="gelu"),
    "gelu_tanh": partial(gelu, kind="gelu_tanh"),
    "softmax": softmax,
}


class HalfEmitter(Emitter):
    """A float16 model under construction."""

    def curve(self, kind: str, output: str, x: str, *more: str) -> str:
        """Add an activation or a softmax; see `Emitter.curve`."""
        return CURVES[kind](self, x, output, *more)
