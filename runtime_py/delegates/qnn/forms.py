"""QNN's own forms of operators, which suit the numbers of QNN's device.

In: an `OpContext`, and an operator's arguments. Out: the name of the result. Norms are
operators of the device. Halves are rotated separately, since on integers each half has
a range of its own. Attention adds to the scores a bias that the host computes.
"""

from typing import Final

import numpy as np

from kvc.runtime.delegates.lowering.attention import mixed, scale_of, scored
from kvc.runtime.delegates.lowering.builder import FLOAT, Builder
from kvc.runtime.delegates.lowering.context import Made, OpContext
from kvc.runtime.delegates.qnn.ranges import LARGEST_BIAS, Reach
from kvc.schema.backends.primitives import Primitive

_P = Primitive
_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm
CHANNELS, HIDDEN_SCORES = "channels", "hidden_scores"  # operations of the forms


class QnnBuilder(Builder):
    """A function of the device under construction.

    Attributes:
        exact: constants [1] as Python numbers, by name.
        scores: the range of an attention's scores, by the name of their product.
        range_of_products: the range of the results of `product` from now on; None if
            the range is not known.
        unrounded: the names of weights that the model stores without rounding.
    """

    def __init__(self, primitives: frozenset[Primitive]) -> None:
        super().__init__(primitives)
        self.exact: dict[str, float] = {}
        self.scores: dict[str, Reach] = {}
        self.range_of_products: Reach | None = None
        self.unrounded: set[str] = set()

    @property
    def numbers(self) -> dict[str, float]:
        """Return the constants [1] by their names in the finished function."""
        return {
            f"%c{i}": self.exact[name]
            for i, name in enumerate(self._constants)
            if name in self.exact
        }

    def number(self, value: float, dtype: str) -> str:
        """Add a number as a constant [1]."""
        name = super().number(value, dtype)
        self.exact.setdefault(name, value)
        return name

    def product(self, x: str, y: str) -> str:
        """Multiply matrices; record the current `range_of_products`."""
        name = super().product(x, y)
        if self.range_of_products is not None:
            self.scores.setdefault(name, self.range_of_products)
        return name


def rms_norm(
    line: OpContext, x: object, axes: object, weight: object, eps: float | None
) -> Made:
    """Normalize by the root mean square of the last axis."""
    facts = {"axis": -1, "epsilon": _SMALLEST if eps is None else eps}
    given = line.get(x), line.get(weight)
    return line.build.operation("RMSNormalization", given, FLOAT, line.shape, **facts)


def layer_norm(
    line: OpContext, x: object, axes: object, weight: object, bias: object, eps: float
) -> Made:
    """Normalize the last axis, by the device's own operator."""
    given = [line.get(each) for each in (x, weight, bias) if each is not None]
    facts = {"axis": -1, "epsilon": eps}
    return line.build.operation("LayerNormalization", given, FLOAT, line.shape, **facts)


def fixed_layer_norm(
    line: OpContext, x: object, axes: object, weight: object, bias: object, eps: float
) -> Made:
    """Subtract the mean and normalize: the device's LayerNormalization is inexact.

    On integers, the device's own operator is off by 20 steps of the grid.
    """
    build, name = line.build, line.get(x)
    mean = build.reduce(_P.MEAN, name, (len(line.shape) - 1,))
    given = build.binary(_P.SUB, name, mean), line.get(weight)
    facts = {"axis": -1, "epsilon": eps}
    made = build.operation("RMSNormalization", given, FLOAT, line.shape, **facts)
    return made if bias is None else build.binary(_P.ADD, made, line.get(bias))


def rotary(line: OpContext, x: object, cos: object, sin: object) -> Made:
    """Rotate halves: [first cos - second sin, second cos + first sin]."""
    build, name = line.build, line.get(x)
    axis, half = len(line.shape) - 1, line.shape[-1] // 2
    spans = range(half), range(half, 2 * half)
    first, second = (build.part(name, axis, span) for span in spans)
    made = []
    for span, one, other, op in (
        (spans[0], first, second, _P.SUB),
        (spans[1], second, first, _P.ADD),
    ):
        tables = [_half(build, line.get(each), span) for each in (cos, sin)]
        even = build.binary(_P.MUL, one, tables[0])
        made.append(build.binary(op, even, build.binary(_P.MUL, other, tables[1])))
    return build.concat(made, axis)


def _half(build: Builder, table: str, span: range) -> str:
    """Return cosines or sines for a half; a table of half width fits both halves."""
    shape = build.shape(table)
    return table if shape[-1] == len(span) else build.part(table, len(shape) - 1, span)


def int8_linear(
    line: OpContext, x: object, weight: object, scale: object, bias: object
) -> Made:
    """Multiply by a transposed int8 matrix [out, in] with float32 scales [out]."""
    build, scales, matrix = line.build, line.get(scale), line.get(weight)
    assert isinstance(build, QnnBuilder)
    build.unrounded |= {scales, matrix}
    turned = build.turned(matrix)
    channels = build.operation(CHANNELS, (turned, scales), FLOAT, build.shape(turned))
    made = build.product(line.get(x), channels)
    return made if bias is None else build.binary(_P.ADD, made, line.get(bias))


def attention_product(
    line: OpContext,
    q: object,
    k: object,
    v: object,
    mask: object,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Made:
    """Attend without a cache; numbers of the mask are bounded: -inf gives NaN."""
    build = line.build
    given = [line.get(each) for each in (q, k, v)]
    bias = None
    if mask is not None:
        bias = build.with_number(_P.MAXIMUM, line.get(mask), -LARGEST_BIAS)
    factor = scale_of(build, scale, given[0])
    return attend(build, given[0], (given[1], given[2]), factor, None, bias, None)


def attend(
    build: Builder,
    q: str,
    content: tuple[str, str],
    scale: float,
    softcap: float | None,
    bias: str | None,
    seeing: str | None,
) -> str:
    """Attend to keys and values.

    Args:
        build: collects the operations.
        q: the queries, [batch, heads, queries, width].
        content: keys and values, [batch, groups, columns, width].
        scale: the factor on the scores.
        softcap: the bound of scores, as in `kvc::attention`; None for no bound.
        bias: the addition to scores, [batch, heads, queries, columns], or None.
        seeing: a factor on the attention weights of each query, [batch, heads or 1,
            queries, 1], or None. The factor is not applied to the products with the
            values: the library's program for such a model crashes.
    """
    keys, values = content
    x = scored(build, q, keys, scale, softcap)
    if bias is not None:
        x = build.operation(HIDDEN_SCORES, (x, bias), FLOAT, build.shape(x))
    given = (x,) if seeing is None else (x, seeing)
    x = build.operation(_P.SOFTMAX, given, FLOAT, build.shape(x), axis=3)
    return mixed(build, x, values)
