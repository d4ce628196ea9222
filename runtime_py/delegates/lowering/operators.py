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
    INT,
    Builder,
    NotTaken,
)
from kvc.runtime.delegates.lowering.caches import update_cache
from kvc.runtime.delegates.lowering.context import Emit, Made, OpContext
from kvc.schema.backends.primitives import Primitive
from kvc.schema.ops import CACHE_UPDATE

_P = Primitive
_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm
_MOST_INTEGER: Final = 2**31

# Arithmetic of elements.


def _unary(op: Primitive, line: OpContext, x: object) -> Made:
    return line.build.unary(op, line.get(x))


def _binary(
    op: Primitive, line: OpContext, one: object, other: object, *_: object
) -> Made:
    x = line.get(one)
    return line.build.binary(op, x, line.operand(other, x))


def _reversed(line: OpContext, x: object, number: object, _: object) -> Made:
    name = line.get(x)
    return line.build.binary(_P.SUB, line.operand(number, name), name)


def _compared(op: Primitive, line: OpContext, one: object, other: object) -> Made:
    """Compare; an integer tensor is compared with a fraction as float32."""
    x = line.get(one)
    if isinstance(other, float) and other % 1 and line.build.dtype(x) not in _FLOATS:
        x = line.build.cast(x, FLOAT)
    return line.build.binary(op, x, line.operand(other, x))


def _power(line: OpContext, x: object, exponent: object) -> Made:
    name, build = line.get(x), line.build
    if exponent in (2, 3):
        made = build.binary(_P.MUL, name, name)
        return made if exponent == 2 else build.binary(_P.MUL, made, name)
    if exponent == -1:
        return build.unary(_P.RECIPROCAL, name)
    if exponent in (0.5, -0.5):
        return build.unary(_P.SQRT if exponent == 0.5 else _P.RSQRT, name)
    return build.binary(_P.POWER, name, line.operand(exponent, name))


def _power_of(line: OpContext, base: object, exponent: object) -> Made:
    name = line.get(exponent)
    return line.build.binary(_P.POWER, line.operand(base, name), name)


def _log1p(line: OpContext, x: object) -> Made:
    return line.build.unary(_P.LOG, line.build.with_number(_P.ADD, line.get(x), 1))


def _clamp(line: OpContext, x: object, least: object, most: object) -> Made:
    name = line.get(x)
    for op, bound in ((_P.MAXIMUM, least), (_P.MINIMUM, most)):
        if bound is not None:
            name = line.build.binary(op, name, line.operand(bound, name))
    return name


def _gelu(line: OpContext, x: object, approximate: object) -> Made:
    return line.build.gelu(line.get(x), str(approximate))


def _glu(line: OpContext, gate: object, up: object, activation: object) -> Made:
    build, x = line.build, line.get(gate)
    if activation == "silu":
        opened = build.unary(_P.SILU, x)
    else:
        opened = build.gelu(x, "tanh" if activation == "gelu_tanh" else "none")
    return build.binary(_P.MUL, opened, line.get(up))


def _where(line: OpContext, condition: object, one: object, other: object) -> Made:
    return line.build.where(*map(line.get, (condition, one, other)))


def _filled(line: OpContext, x: object, mask: object, value: object) -> Made:
    name = line.get(x)
    return line.build.where(line.get(mask), line.operand(value, name), name)


def _cast(line: OpContext, x: object, *_: object) -> Made:
    name, wanted = line.get(x), line.dtypes[0]
    if wanted == FLOAT and line.build.dtype(name) == HALF:
        return name
    if wanted == BOOL and line.build.dtype(name) != BOOL:
        return line.build.with_number(_P.NOT_EQUAL, name, 0)
    return line.build.cast(name, wanted)


def _after(line: OpContext, start: object, count: object) -> Made:
    """Return the positions that lie `count` after a start."""
    name = line.get(start)
    return line.build.binary(_P.ADD, name, line.operand(count, name))


# Reductions and norms.


def _reduce(
    op: Primitive, line: OpContext, x: object, axes: object, keep: object
) -> Made:
    name, build = line.get(x), line.build
    before, rank = build.dtype(name), len(build.shape(name))
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
    eps: object,
) -> Made:
    assert isinstance(eps, float)
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


def _softmax(line: OpContext, x: object, axis: object) -> Made:
    assert isinstance(axis, int)
    return line.build.softmax(line.get(x), axis % len(line.shape))


# Products.


def _linear(line: OpContext, x: object, weight: object, bias: object) -> Made:
    turned = line.build.turned(line.factor(weight))
    made = line.build.product(line.factor(x), turned)
    return made if bias is None else line.build.binary(_P.ADD, made, line.get(bias))


def _linear_w8(
    line: OpContext, x: object, weight: object, scale: object, bias: object
) -> Made:
    """Multiply by an int8 matrix [out, in], then by its scales [out]."""
    build, dtype = line.build, line.traits.products
    turned = build.turned(build.cast(line.get(weight), dtype))
    made = build.product(line.factor(x), turned)
    made = build.binary(_P.MUL, made, line.get(scale))
    return made if bias is None else build.binary(_P.ADD, made, line.get(bias))


def _product(line: OpContext, one: object, other: object) -> Made:
    return line.build.product(line.factor(one), line.factor(other))


def _added_product(
    line: OpContext, x: object, one: object, other: object, beta: object, alpha: object
) -> Made:
    made = line.build.product(line.factor(one), line.factor(other))
    return line.build.binary(_P.ADD, made, line.get(x))


def _attention_product(
    line: OpContext,
    q: object,
    k: object,
    v: object,
    mask: object,
    causal: object,
    scale: object,
    _: object,
) -> Made:
    operands = [line.factor(each) for each in (q, k, v)]
    wide = (*line.shape[:-1], line.build.shape(operands[0])[-1])
    operands[0] = line.build.broadcast(operands[0], wide)
    given = line.optional(mask)
    return attend_to_tokens(line, operands, given, scale, causal=bool(causal))


def _rotary(line: OpContext, x: object, cos: object, sin: object) -> Made:
    """Add x cos + [-second half, first half] sin."""
    build, name = line.build, line.get(x)
    axis, half = len(line.shape) - 1, line.shape[-1] // 2
    first = build.part(name, axis, range(half))
    second = build.part(name, axis, range(half, 2 * half))
    turned = build.concat((build.unary(_P.NEG, second), first), axis)
    c, s = (_table(line, each) for each in (cos, sin))
    one, other = build.binary(_P.MUL, name, c), build.binary(_P.MUL, turned, s)
    return build.binary(_P.ADD, one, other)


def _table(line: OpContext, table: object) -> str:
    """Return cosines or sines for the whole last axis."""
    name = line.get(table)
    shape = line.build.shape(name)
    if shape[-1] == line.shape[-1]:
        return name
    return line.build.concat((name, name), len(shape) - 1)


# Rows and elements by index.


def _checked(line: OpContext, index: str, count: int, *, wraps: bool = False) -> str:
    """Return an index in range; record one that is out of range, and replace it."""
    build = line.build
    line.note(index, -count if wraps else 0, count)
    if wraps:
        back = build.with_number(_P.ADD, index, count)
        below = build.binary(_P.GREATER, build.number(0, build.dtype(index)), index)
        index = build.where(below, back, index)
    if not line.traits.checked:
        return index
    index = build.with_number(_P.MAXIMUM, index, 0)
    return build.with_number(_P.MINIMUM, index, count - 1)


def _rows(line: OpContext, table: str, index: object, *, wraps: bool = False) -> Made:
    count = line.build.shape(table)[0]
    return line.build.rows(table, _checked(line, line.get(index), count, wraps=wraps))


def _embedding(line: OpContext, table: object, index: object) -> Made:
    """Look up rows of a table; a product can use the same table as its weight."""
    return _rows(line, line.factor(table), index)


def _embedding_q8(line: OpContext, table: object, scale: object, index: object) -> Made:
    """Look up rows of an int8 table; multiply them by their scales."""
    build, dtype = line.build, line.traits.products
    found, scales = _rows(line, line.get(table), index), line.get(scale)
    column = build.reshape(scales, (*build.shape(scales), 1))
    assert isinstance(found, str)
    own = _rows(line, column, index)
    assert isinstance(own, str)
    return build.binary(_P.MUL, build.cast(found, dtype), own)


def _selected(line: OpContext, x: object, axis: object, index: object) -> Made:
    """Take slices along an axis, which becomes the first axis while they are taken."""
    assert isinstance(axis, int)
    build, name = line.build, line.get(x)
    rank = len(build.shape(name))
    order = [axis % rank, *(n for n in range(rank) if n != axis % rank)]
    made = _rows(line, build.transpose(name, tuple(order)), index)
    assert isinstance(made, str)
    return build.transpose(made, tuple(order.index(n) for n in range(rank)))


def _indexed(line: OpContext, x: object, indices: object) -> Made:
    assert isinstance(indices, tuple)
    return _rows(line, line.get(x), indices[0], wraps=True)


def _gathered(line: OpContext, x: object, axis: object, index: object) -> Made:
    assert isinstance(axis, int)
    build, name, at = line.build, line.get(x), line.get(index)
    along = axis % len(line.shape)
    for other, size in enumerate(line.shape):
        if other != along:
            name = build.part(name, other, range(size))
    found = _checked(line, at, build.shape(name)[along])
    return build.along(name, found, along)


# Creation, concatenation and movement of elements.


def _cat(line: OpContext, tensors: object, axis: object) -> Made:
    assert isinstance(tensors, tuple)
    assert isinstance(axis, int)
    names = [line.get(each) for each in tensors]
    kept = [n for n in names if 0 not in line.build.shape(n)] or names[:1]
    return line.build.concat(kept, axis % len(line.shape))


def _stack(line: OpContext, tensors: object, axis: object) -> Made:
    assert isinstance(tensors, tuple)
    assert isinstance(axis, int)
    along = axis % len(line.shape)
    one = tuple(1 if n == along else size for n, size in enumerate(line.shape))
    parts = [line.build.reshape(line.get(each), one) for each in tensors]
    return line.build.concat(parts, along)


def _repeat(line: OpContext, x: object, times: object) -> Made:
    assert isinstance(times, tuple)
    build, name = line.build, line.get(x)
    name = build.reshape(
        name, (*(1,) * (len(times) - len(build.shape(name))), *build.shape(name))
    )
    for axis, count in enumerate(times):
        name = build.concat([name] * count, axis)
    return name


def _full(line: OpContext, size: object, value: object, *_: object) -> Made:
    assert isinstance(value, int | float)
    number = line.build.number(_fits(line, value), line.dtypes[0])
    return line.build.broadcast(number, line.shape)


def _arange(
    line: OpContext, start: object, end: object, step: object, *_: object
) -> Made:
    assert isinstance(start, int | float)
    assert isinstance(step, int | float)
    numbers = start + step * np.arange(line.shape[0])
    for number in numbers[[0, -1]] if numbers.size else ():
        _fits(line, number.item())
    return line.build.constant(numbers.astype(line.dtypes[0]))


def _fits(line: OpContext, value: float) -> float:
    """Return a number that the dtype of the result can represent.

    Raises:
        NotTaken: an integer needs more than 32 bits.
    """
    if line.dtypes[0] == INT and not -_MOST_INTEGER <= value < _MOST_INTEGER:
        raise NotTaken(f"{value} has more than 32 bits")
    return value


def _copy(line: OpContext, x: object, source: object) -> Made:
    """Return the content of `x` after a copy into it."""
    made = line.build.cast(line.get(source), line.build.dtype(line.get(x)))
    return line.build.broadcast(made, line.shape)


def _reshape(line: OpContext, x: object, *_: object) -> Made:
    return line.build.reshape(line.get(x), line.shape)


def _transpose(line: OpContext, x: object, one: object, other: object) -> Made:
    assert isinstance(one, int)
    assert isinstance(other, int)
    order = list(range(len(line.shape)))
    order[one], order[other] = order[other], order[one]
    return line.build.transpose(line.get(x), tuple(order))


def _permute(line: OpContext, x: object, order: object) -> Made:
    assert isinstance(order, tuple)
    rank = len(line.shape)
    return line.build.transpose(line.get(x), tuple(axis % rank for axis in order))


def _slice(line: OpContext, x: object, axis: object, *bounds: object) -> Made:
    assert isinstance(axis, int)
    name = line.get(x)
    shape = line.build.shape(name)
    along = axis % len(shape)
    start, end, by = (each if isinstance(each, int) else None for each in bounds)
    return line.build.part(name, along, range(shape[along])[start:end:by])


def _select(line: OpContext, x: object, axis: object, index: object) -> Made:
    assert isinstance(axis, int)
    assert isinstance(index, int)
    name = line.get(x)
    shape = line.build.shape(name)
    along = axis % len(shape)
    at = index % shape[along]
    one = line.build.part(name, along, range(at, at + 1))
    return line.build.reshape(one, line.shape)


def _split(line: OpContext, x: object, sizes: object, axis: object) -> Made:
    assert isinstance(sizes, tuple)
    assert isinstance(axis, int)
    name = line.get(x)
    along, start, made = axis % len(line.build.shape(name)), 0, []
    for size in sizes:
        made.append(line.build.part(name, along, range(start, start + size)))
        start += size
    return made


def _expand(line: OpContext, x: object, *_: object) -> Made:
    return line.build.broadcast(line.get(x), line.shape)


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
    "aten::log1p": _log1p,
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
    "aten::embedding": _embedding,
    "kvc::embedding_q8": _embedding_q8,
    "aten::index_select": _selected,
    "aten::index.Tensor": _indexed,
    "aten::gather": _gathered,
    "aten::cat": _cat,
    "aten::stack": _stack,
    "aten::repeat": _repeat,
    "aten::full": _full,
    "aten::arange.start_step": _arange,
    "aten::copy": _copy,
    **{f"aten::{op}": _reshape for op in ("clone", "reshape", "alias", "view")},
    **{f"aten::{op}": _reshape for op in ("unsqueeze", "squeeze.dims")},
    "aten::transpose.int": _transpose,
    "aten::permute": _permute,
    "aten::slice.Tensor": _slice,
    "aten::select.int": _select,
    "aten::split_with_sizes": _split,
    "aten::expand": _expand,
    CACHE_UPDATE: update_cache,
    "kvc::attention": attend,
}
