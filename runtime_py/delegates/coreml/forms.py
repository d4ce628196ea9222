"""Core ML's own forms of operators, which replace those of `lowering/operators.py`.

`FORMS` has a function for each such operator. The functions have the parameters and
results that `lowering/operators.py` describes. `calls.py` has the calls of the
operations "linear", "layer_norm" and "widened".
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from kvc.runtime.delegates.lowering.builder import HALF
from kvc.runtime.delegates.lowering.context import Emit, Made, OpContext
from kvc.schema.backends.coreml import LARGEST
from kvc.schema.backends.primitives import Primitive

_P = Primitive
_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm
_LEAST: Final = 6.2e-5  # a divisor above the least normal float16
_TINY: Final = 2.0**-24  # the least float16 above 0


def _linear(line: OpContext, x: object, weight: object, bias: object) -> Made:
    """Multiply by Core ML's `linear`, whose weight stays a constant."""
    return _multiplied(line, x, line.factor(weight), bias)


def _linear_w8(
    line: OpContext, x: object, weight: object, scale: object, bias: object
) -> Made:
    """Multiply by Core ML's `linear`; the weight stays int8 in the package."""
    return _multiplied(line, x, _widened(line, weight, scale), bias)


def _embedding_q8(line: OpContext, table: object, scale: object, index: object) -> Made:
    """Look up rows of a table [rows, columns], which stays int8 in the package."""
    return line.build.rows(_widened(line, table, scale), line.get(index))


def _widened(line: OpContext, weight: object, scale: object) -> str:
    """Return a constant int8 matrix [rows, columns] times scales [rows], in float16."""
    held, scales = line.get(weight), line.read(scale, HALF)
    shape = line.build.shape(held)
    return line.build.operation("widened", (held, scales), HALF, shape)


def _multiplied(line: OpContext, x: object, weight: str, bias: object) -> str:
    """Return x [..., in] times the transpose of a matrix [out, in], plus a bias [out].

    The result is float16 [rows, out], with one row for each row of `x`.
    """
    build, held = line.build, line.factor(x)
    *most, width = build.shape(held)
    flat = build.reshape(held, (math.prod(most), width))
    added = [] if bias is None else [line.read(bias, HALF)]
    shape = (math.prod(most), build.shape(weight)[0])
    return build.operation("linear", (flat, weight, *added), HALF, shape)


def _rms_norm(
    line: OpContext, x: object, axes: object, weight: object, epsilon: object
) -> Made:
    """Normalize by the root mean square of the last axis.

    Each row is first divided by its greatest absolute number, so that the squares of
    the row fit in float16.
    """
    build, held = line.build, line.factor(x)
    last = (len(build.shape(held)) - 1,)
    least = epsilon if isinstance(epsilon, float) else _SMALLEST
    largest = build.reduce(_P.MAX, build.unary(_P.ABS, held), last)
    largest = build.with_number(_P.MAXIMUM, largest, _LEAST)
    small = build.binary(_P.DIVIDE, held, largest)
    mean = build.reduce(_P.MEAN, build.binary(_P.MUL, small, small), last)
    root = build.binary(_P.DIVIDE, build.number(math.sqrt(least), HALF), largest)
    mean = build.binary(_P.ADD, mean, build.binary(_P.MUL, root, root))
    made = build.binary(_P.DIVIDE, small, build.unary(_P.SQRT, mean))
    return made if weight is None else build.binary(_P.MUL, made, line.get(weight))


def _layer_norm(
    line: OpContext, x: object, _: object, weight: object, bias: object, epsilon: float
) -> Made:
    """Normalize by `layer_norm`, a single operation of Core ML."""
    build, held = line.build, line.factor(x)
    made = build.operation(
        "layer_norm", (held,), HALF, build.shape(held), epsilon=max(epsilon, _TINY)
    )
    for op, given in ((_P.MUL, weight), (_P.ADD, bias)):
        if given is not None:
            made = build.binary(op, made, line.get(given))
    return made


def _product(line: OpContext, one: object, other: object) -> Made:
    """Multiply in float32 unless an operand is float16: angles have to be exact."""
    return line.build.product(line.get(one), line.get(other))


def _filled(line: OpContext, x: object, mask: object, value: float) -> Made:
    """Fill with finite float16 numbers: a row of only -inf would have no softmax."""
    name = line.computed(x)
    if line.build.dtype(name) == HALF:
        value = max(-LARGEST, min(value, LARGEST))
    return line.build.where(line.get(mask), line.operand(value, name), name)


def _log1p(line: OpContext, x: object) -> Made:
    """Return the logarithm of x + 1."""
    return line.build.unary(_P.LOG, line.build.with_number(_P.ADD, line.computed(x), 1))


FORMS: Final[Mapping[str, Emit]] = {
    "aten::linear": _linear,
    "kvc::linear_w8": _linear_w8,
    "kvc::embedding_q8": _embedding_q8,
    "aten::rms_norm": _rms_norm,
    "aten::layer_norm": _layer_norm,
    **{f"aten::{op}": _product for op in ("matmul", "mm", "bmm")},
    "aten::masked_fill.Scalar": _filled,
    "aten::log1p": _log1p,
}
