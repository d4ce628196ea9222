"""Lower operators to operations of a function.

In: an `OpContext`, and the operator's arguments with fixed sizes. Out: the name of the
result or the names of the results. `OPERATORS` has a function for each operator, which
takes the arguments in the order of the operator's signature. If the device computes in
float16, products and computations on their results are float16. Views become copies.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.delegates.lowering.attention import attend, attend_to_tokens
from kvc.runtime.delegates.lowering.builder import (
    BOOL,
    FLOAT,
    HALF,
    Builder,
)
from kvc.runtime.delegates.lowering.caches import update_cache
from kvc.runtime.delegates.lowering.context import Emit, Made, OpContext
from kvc.runtime.delegates.lowering.moving import MOVING
from kvc.runtime.delegates.lowering.rows import ROWS
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.backends.primitives import Primitive
from kvc.schema.ops import CACHE_UPDATE

_P = Primitive
_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm

# Arithmetic of elements.


def _unary(op: Primitive, line: OpContext, x: object) -> Made:
    return line.build.unary(op, line.computed(x))


def _binary(
    op: Primitive, line: OpContext, one: object, other: object, alpha: float = 1
) -> Made:
    x = line.computed(one)
    y = _times(line, line.operand(other, x), alpha)
    return line.build.binary(op, x, y)


def _reversed(line: OpContext, x: object, number: object, alpha: float) -> Made:
    name = line.computed(x)
    given = line.operand(number, name)
    return line.build.binary(_P.SUB, given, _times(line, name, alpha))


def _times(line: OpContext, name: str, factor: float) -> str:
    return name if factor == 1 else line.build.with_number(_P.MUL, name, factor)


def _compared(op: Primitive, line: OpContext, one: object, other: object) -> Made:
    """Compare elements; integers are cast to float32 to be compared with a fraction."""
    x = line.get(one)
    if isinstance(other, float) and other % 1 and line.build.dtype(x) not in _FLOATS:
        x = line.build.cast(x, FLOAT)
    return line.build.binary(op, x, line.operand(other, x))


def _power(line: OpContext, x: object, exponent: object) -> Made:
    name, build = line.computed(x), line.build
    if exponent in (2, 3):
        made = build.binary(_P.MUL, name, name)
        return made if exponent == 2 else build.binary(_P.MUL, made, name)
    if exponent == -1:
        return build.unary(_P.RECIPROCAL, name)
    if exponent in (0.5, -0.5):
        return build.unary(_P.SQRT if exponent == 0.5 else _P.RSQRT, name)
    return build.binary(_P.POWER, name, line.operand(exponent, name))


def _power_of(line: OpContext, base: object, exponent: object) -> Made:
    name = line.computed(exponent)
    return line.build.binary(_P.POWER, line.operand(base, name), name)


def _clamp(line: OpContext, x: object, least: object, most: object) -> Made:
    name = line.computed(x)
    for op, bound in ((_P.MAXIMUM, least), (_P.MINIMUM, most)):
        if bound is not None:
            name = line.build.binary(op, name, line.operand(bound, name))
    return name


def _gelu(line: OpContext, x: object, approximate: object) -> Made:
    return line.build.gelu(line.computed(x), str(approximate))


def _glu(line: OpContext, gate: object, up: object, activation: object) -> Made:
    build, x = line.build, line.computed(gate)
    if activation == "silu":
        opened = build.unary(_P.SILU, x)
    else:
        opened = build.gelu(x, "tanh" if activation == "gelu_tanh" else "none")
    return build.binary(_P.MUL, opened, line.computed(up))


def _where(line: OpContext, condition: object, one: object, other: object) -> Made:
    return line.build.where(line.get(condition), *map(line.computed, (one, other)))


def _filled(line: OpContext, x: object, mask: object, value: object) -> Made:
    name = line.computed(x)
    return line.build.where(line.get(mask), line.operand(value, name), name)


def _cast(line: OpContext, x: object, *_: object) -> Made:
    name, wanted = line.get(x), line.dtypes[0]
    if wanted == FLOAT and line.build.dtype(name) == HALF:
        return name
    if wanted == BOOL and line.build.dtype(name) != BOOL:
        return line.build.with_number(_P.NOT_EQUAL, name, 0)
    return line.build.cast(name, wanted)


def _after(line: OpContext, start: object, count: object) -> Made:
    """Return the position `count` after each position of `start`."""
    name = line.get(start)
    return line.build.binary(_P.ADD, name, line.operand(count, name))


# Reductions and norms.


def _reduce(
    op: Primitive, line: OpContext, x: object, axes: object, keep: object
) -> Made:
    name, build = line.computed(x), line.build
    before, rank = build.dtype(name), len(build.shape(name))
    if not rank:
        return name
    along = axes if isinstance(axes, tuple) and axes else tuple(range(rank))
    # Sums of many numbers are computed in float32.
    if line.traits.wide and before in _FLOATS:
        name = build.cast(name, FLOAT)
    made = build.reduce(op, name, tuple(sorted(axis % rank for axis in along)))
    return build.reshape(build.cast(made, before), line.shape)


def _rms_norm(
    line: OpContext, x: object, axes: object, weight: object, eps: object
) -> Made:
    name = line.get(x)
    wide = line.build.cast(name, FLOAT) if line.traits.wide else name
    least = eps if isinstance(eps, float) else _SMALLEST
    made = _scaled_by(line.build, wide, wide, least)
    return _weighted(line, made, weight, None, name)


def _layer_norm(
    line: OpContext,
    x: object,
    axes: object,
    weight: object,
    bias: object,
    eps: float,
) -> Made:
    build, name = line.build, line.get(x)
    wide = build.cast(name, FLOAT) if line.traits.wide else name
    mean = build.reduce(_P.MEAN, wide, (len(build.shape(name)) - 1,))
    centered = build.binary(_P.SUB, wide, mean)
    made = _scaled_by(build, centered, centered, eps)
    return _weighted(line, made, weight, bias, name)


def _scaled_by(build: Builder, x: str, of: str, least: float) -> str:
    """Divide `x` by the root mean square of the last axis of `of`."""
    squares = build.binary(_P.MUL, of, of)
    mean = build.reduce(_P.MEAN, squares, (len(build.shape(of)) - 1,))
    root = build.unary(_P.RSQRT, build.with_number(_P.ADD, mean, least))
    return build.binary(_P.MUL, x, root)


def _weighted(
    line: OpContext, made: str, weight: object, bias: object, like: str
) -> str:
    """Apply a norm's weight and bias; return the result in the dtype of `like`."""
    for op, given in ((_P.MUL, weight), (_P.ADD, bias)):
        if given is not None:
            made = line.build.binary(op, made, line.get(given))
    return line.build.cast(made, line.build.dtype(like))


def _softmax(line: OpContext, x: object, axis: int) -> Made:
    shape = line.shape or (1,)
    return line.build.softmax(
        line.build.reshape(line.computed(x), shape), axis % len(shape)
    )


# Products.


def _linear(line: OpContext, x: object, weight: object, bias: object) -> Made:
    turned = line.build.turned(line.factor(weight))
    made = line.build.product(line.factor(x), turned)
    return made if bias is None else line.build.binary(_P.ADD, made, line.get(bias))


def _linear_w8(
    line: OpContext, x: object, weight: object, scale: object, bias: object
) -> Made:
    """Multiply by the transpose of an int8 matrix [out, in], then by scales [out]."""
    build, dtype = line.build, line.traits.products
    turned = build.turned(build.cast(line.get(weight), dtype))
    made = build.product(line.factor(x), turned)
    made = build.binary(_P.MUL, made, line.get(scale))
    return made if bias is None else build.binary(_P.ADD, made, line.get(bias))


def _product(line: OpContext, one: object, other: object) -> Made:
    return line.build.product(line.factor(one), line.factor(other))


def _added_product(
    line: OpContext, x: object, one: object, other: object, beta: float, alpha: float
) -> Made:
    made = line.build.product(line.factor(one), line.factor(other))
    made = _times(line, made, alpha)
    if not beta:  # infinities and NaN in `x` are dropped, too
        return made
    return line.build.binary(_P.ADD, made, _times(line, line.get(x), beta))


def _attention_product(
    line: OpContext,
    q: object,
    k: object,
    v: object,
    mask: object,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Made:
    build, missing = line.build, (1,) * (4 - len(line.shape))
    given = [line.factor(each) for each in (q, k, v)]
    operands = [
        build.reshape(each, (1,) * (4 - len(build.shape(each))) + build.shape(each))
        for each in given
    ]
    wide = (*missing, *line.shape[:-1], build.shape(operands[0])[-1])
    operands[0] = build.broadcast(operands[0], wide)
    return attend_to_tokens(line, operands, line.optional(mask), scale, causal=causal)


def _rotary(line: OpContext, x: object, cos: object, sin: object) -> Made:
    """Return x cos + [-second half of x, first half of x] sin."""
    build, name = line.build, line.get(x)
    axis, half = len(line.shape) - 1, line.shape[-1] // 2
    first = build.part(name, axis, range(half))
    second = build.part(name, axis, range(half, 2 * half))
    turned = build.concat((build.unary(_P.NEG, second), first), axis)
    c, s = (_table(line, each) for each in (cos, sin))
    one, other = build.binary(_P.MUL, name, c), build.binary(_P.MUL, turned, s)
    return build.binary(_P.ADD, one, other)


def _table(line: OpContext, table: object) -> str:
    """Return cosines or sines for the whole last axis; a half table is repeated."""
    name = line.get(table)
    shape = line.build.shape(name)
    if shape[-1] == line.shape[-1]:
        return name
    return line.build.concat((name, name), len(shape) - 1)


_FLOATS: Final = (FLOAT, HALF)
_ALONE: Final = (
    *(_P.NEG, _P.ABS, _P.CEIL, _P.FLOOR, _P.EXP, _P.LOG, _P.SQRT, _P.RSQRT),
    *(_P.RECIPROCAL, _P.SIN, _P.COS, _P.TANH, _P.SIGMOID, _P.ERF, _P.RELU, _P.SILU),
)
_PAIRS: Final = {
    "add": _P.ADD,
    "sub": _P.SUB,
    "mul": _P.MUL,
    "div": _P.DIVIDE,
}
_COMPARED: Final = {
    "eq": _P.EQUAL,
    "ne": _P.NOT_EQUAL,
    "lt": _P.LESS,
    "le": _P.LESS_EQUAL,
    "gt": _P.GREATER,
    "ge": _P.GREATER_EQUAL,
}
_KINDS: Final = ("Tensor", "Scalar")
OPERATORS: Final[Mapping[str, Emit]] = {
    **{f"aten::{op}": partial(_unary, op) for op in _ALONE},
    **{
        f"aten::{name}.{kind}": partial(_binary, op)
        for name, op in _PAIRS.items()
        for kind in _KINDS
    },
    **{
        f"aten::{name}.{kind}": partial(_compared, op)
        for name, op in _COMPARED.items()
        for kind in _KINDS
    },
    "aten::rsub.Scalar": _reversed,
    "aten::maximum": partial(_binary, _P.MAXIMUM),
    "aten::minimum": partial(_binary, _P.MINIMUM),
    "aten::pow.Tensor_Scalar": _power,
    "aten::pow.Scalar": _power_of,
    "aten::clamp": _clamp,
    "aten::gelu": _gelu,
    "kvc::glu": _glu,
    **{
        f"aten::{kind}_{op}{suffix}": partial(_binary, op)
        for kind, suffix in (("logical", ""), ("bitwise", ".Tensor"))
        for op in (_P.AND, _P.OR, _P.XOR)
    },
    "aten::logical_not": partial(_unary, _P.NOT),
    "aten::bitwise_not": partial(_unary, _P.NOT),
    "aten::where.self": _where,
    "aten::masked_fill.Scalar": _filled,
    "aten::_to_copy": _cast,
    "kvc::after": _after,
    "aten::sum.dim_IntList": partial(_reduce, _P.SUM),
    "aten::mean.dim": partial(_reduce, _P.MEAN),
    "aten::amax": partial(_reduce, _P.MAX),
    "aten::amin": partial(_reduce, _P.MIN),
    "aten::rms_norm": _rms_norm,
    "aten::layer_norm": _layer_norm,
    "aten::softmax.int": _softmax,
    "aten::linear": _linear,
    "kvc::linear_w8": _linear_w8,
    "aten::matmul": _product,
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::addmm": _added_product,
    "aten::scaled_dot_product_attention": _attention_product,
    "kvc::rotary_embedding": _rotary,
    **ROWS,
    **MOVING,
    CACHE_UPDATE: update_cache,
    ATTENTION: attend,
}
