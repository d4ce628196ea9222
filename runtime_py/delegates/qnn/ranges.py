"""Ranges of a node's results: the least and the greatest number.

In: an operator of ONNX, the ranges of the operands. Out: the range of the result, for
operators whose range can be derived. Other ranges, such as those of products, were
measured on sample inputs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from kvc.schema.backends.grids import Grid

Reach = tuple[float, float]

# In float16, the addition that hides a score must exceed this bound.
LARGEST_BIAS: Final = 30000.0  # of a float16 score, apart from hiding
HIDING: Final = 17.0  # distance at which an exponential is below 1 / 65536
_GATES: Final = {"silu": -0.2785, "gelu": -0.17, "gelu_tanh": -0.1701}


def reach_of(grid: Grid) -> Reach:
    """Return the least and the greatest number of a grid."""
    least, most = grid.stored.least - grid.zero, grid.stored.most - grid.zero
    return least * grid.scale, most * grid.scale


def gated(kind: str, x: Reach) -> Reach:
    """Return the range of an activation's results for operands in the range `x`.

    Activations are not monotone, so the least result can lie inside the range.
    """
    low, high = (_opened(kind, each) for each in x)
    return min(_GATES[kind], low, high), max(low, high, 0.0)


def _opened(kind: str, x: float) -> float:
    if kind == "silu":
        return x / (1 + math.exp(-x)) if x > -700 else 0.0
    if kind == "gelu":
        return x * (1 + math.erf(x / math.sqrt(2))) / 2
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x * (1 + math.tanh(inner)) / 2


def _sum(x: Reach, y: Reach) -> Reach:
    return x[0] + y[0], x[1] + y[1]


def _difference(x: Reach, y: Reach) -> Reach:
    return x[0] - y[1], x[1] - y[0]


def _product(x: Reach, y: Reach) -> Reach:
    corners = [a * b for a in x for b in y]
    return min(corners), max(corners)


def _union(*some: Reach) -> Reach:
    return min(low for low, _ in some), max(high for _, high in some)


def _greater(x: Reach, y: Reach) -> Reach:
    return max(x[0], y[0]), max(x[1], y[1])


def _smaller(x: Reach, y: Reach) -> Reach:
    return min(x[0], y[0]), min(x[1], y[1])


REACHES: Final[Mapping[str, Callable[..., Reach]]] = {
    "Add": _sum,
    "Sub": _difference,
    "Mul": _product,
    "Max": _greater,
    "Min": _smaller,
    "Concat": _union,
    "ReduceMean": lambda x: x,
}
