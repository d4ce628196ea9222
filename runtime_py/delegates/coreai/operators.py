"""Translate supported operators to steps of a function.

In: a `Line`, and the operator's arguments with fixed sizes. Out: the name of the result
or the names of the results. `EMITTERS` has a function for each operator, which takes
the arguments in the order of the operator's signature. If the recipe computes in
float16, then products, and all computations on results of products, are float16.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreai.emitting import (
    BOOL,
    FLOAT,
    HALF,
    INT,
    Emitter,
    Line,
    Made,
)
from kvc.runtime.delegates.coreai.moving import MOVING

_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm


def _unary(op: str, line: Line, x: object) -> Made:
    return line.emitter.unary(op, line.get(x))


def _binary(op: str, line: Line, one: object, other: object, *_: object) -> Made:
    x = line.get(one)
    if isinstance(other, bool | int | float):
        return line.emitter.with_number(op, x, other)
    return line.emitter.binary(op, x, line.get(other))


def _reversed(line: Line, x: object, number: object, alpha: object) -> Made:
    name = line.get(x)
    assert isinstance(number, int | float)
    first = line.emitter.number(number, line.emitter.dtype(name))
    return line.emitter.binary("sub", first, name)


def _below(op: str, line: Line, one: object, other: object) -> Made:
    """Compare by `lt`, `le`, `gt` or `ge`, using only "greater" and "equal".

    Comparisons with NaN are false.
    """
    emitter, x = line.emitter, line.get(one)
    if isinstance(other, bool | int | float):
        y = emitter.number(other, emitter.dtype(x))
    else:
        y = line.get(other)
    if op in ("lt", "le"):
        x, y = y, x
    made = emitter.binary("greater", x, y)
    if op in ("gt", "lt"):
        return made
    return emitter.binary("or", made, emitter.binary("equal", x, y))


def _negative(line: Line, x: object) -> Made:
    return line.emitter.with_number("mul", line.get(x), -1)


def _reciprocal(line: Line, x: object) -> Made:
    name = line.get(x)
    one = line.emitter.number(1, line.emitter.dtype(name))
    return line.emitter.binary("divide", one, name)


def _power(line: Line, x: object, exponent: object) -> Made:
    name, emitter = line.get(x), line.emitter
    if exponent in (2, 3):
        made = emitter.binary("mul", name, name)
        return made if exponent == 2 else emitter.binary("mul", made, name)
    if exponent == -1:
        return _reciprocal(line, x)
    return emitter.unary("sqrt" if exponent == 0.5 else "rsqrt", name)


def _gelu(line: Line, x: object, approximate: object) -> Made:
    return _gate(line.emitter, line.get(x), f"gelu_{approximate}")


def _gate(emitter: Emitter, x: str, kind: str) -> str:
    if kind == "silu":
        return emitter.unary("silu", x)
    approximate = "tanh" if kind == "gelu_tanh" else "none"
    return emitter.unary("gelu", x, approximate=approximate)


def _glu(line: Line, gate: object, up: object, activation: object) -> Made:
    opened = _gate(line.emitter, line.get(gate), str(activation))
    return line.emitter.binary("mul", opened, line.get(up))


def _where(line: Line, condition: object, one: object, other: object) -> Made:
    return line.emitter.where(*map(line.get, (condition, one, other)))


def _filled(line: Line, x: object, mask: object, value: object) -> Made:
    name = line.get(x)
    assert isinstance(value, int | float)
    number = line.emitter.number(value, line.emitter.dtype(name))
    return line.emitter.where(line.get(mask), number, name)


def _reduce(op: str, line: Line, x: object, axes: object, keep: object) -> Made:
    assert isinstance(axes, tuple)
    name, emitter = line.get(x), line.emitter
    before, rank = emitter.dtype(name), len(emitter.shape(name))
    # Sums of many numbers are computed in float32.
    made = emitter.reduce(
        op, emitter.cast(name, FLOAT), tuple(sorted(a % rank for a in axes))
    )
    return emitter.reshape(emitter.cast(made, before), line.shape)


def _rms_norm(line: Line, x: object, axes: object, weight: object, eps: object) -> Made:
    emitter, name = line.emitter, line.get(x)
    least = eps if isinstance(eps, float) else _SMALLEST
    wide = emitter.cast(name, FLOAT)
    made = _scaled_by(emitter, wide, wide, least)
    if weight is not None:
        made = emitter.binary("mul", made, line.get(weight))
    return emitter.cast(made, emitter.dtype(name))


def _scaled_by(emitter: Emitter, x: str, of: str, least: float) -> str:
    """Return x / sqrt(mean(of ** 2) + least), with the mean over the last axis."""
    squares = emitter.binary("mul", of, of)
    axis = len(emitter.shape(of)) - 1
    mean = emitter.reduce("mean", squares, (axis,))
    root = emitter.unary("rsqrt", emitter.with_number("add", mean, least))
    return emitter.binary("mul", x, root)


def _layer_norm(
    line: Line, x: object, axes: object, weight: object, bias: object, eps: object
) -> Made:
    assert isinstance(eps, float)
    emitter, name = line.emitter, line.get(x)
    wide = emitter.cast(name, FLOAT)
    mean = emitter.reduce("mean", wide, (len(line.shape) - 1,))
    centred = emitter.binary("sub", wide, mean)
    made = _scaled_by(emitter, centred, centred, eps)
    if weight is not None:
        made = emitter.binary("mul", made, line.get(weight))
    if bias is not None:
        made = emitter.binary("add", made, line.get(bias))
    return emitter.cast(made, emitter.dtype(name))


def _softmax(line: Line, x: object, axis: object) -> Made:
    name = line.get(x)
    assert isinstance(axis, int)
    return line.emitter.unary("softmax", name, axis=axis % len(line.shape))


def _linear(line: Line, x: object, weight: object, bias: object) -> Made:
    emitter = line.emitter
    turned = emitter.turned(line.product_of(weight))
    made = emitter.product(line.product_of(x), turned)
    return made if bias is None else emitter.binary("add", made, line.get(bias))


def _product(line: Line, one: object, other: object) -> Made:
    return line.emitter.product(line.product_of(one), line.product_of(other))


def _added_product(
    line: Line, x: object, one: object, other: object, beta: object, alpha: object
) -> Made:
    made = line.emitter.product(line.product_of(one), line.product_of(other))
    return line.emitter.binary("add", made, line.get(x))


def _rotary(line: Line, x: object, cos: object, sin: object) -> Made:
    """Return x cos + r sin, where r is -(second half of x), then x's first half."""
    emitter, name = line.emitter, line.get(x)
    axis, half = len(line.shape) - 1, line.shape[-1] // 2
    first = emitter.part(name, axis, range(half))
    second = emitter.part(name, axis, range(half, 2 * half))
    turned = emitter.concat((emitter.with_number("mul", second, -1), first), axis)
    c, s = (_table(line, each) for each in (cos, sin))
    one, other = emitter.binary("mul", name, c), emitter.binary("mul", turned, s)
    return emitter.binary("add", one, other)


def _table(line: Line, table: object) -> str:
    """Return a table of cosines or sines that covers the result's whole last axis.

    A table for half of the axis is repeated.
    """
    name = line.get(table)
    shape = line.emitter.shape(name)
    if shape[-1] == line.shape[-1]:
        return name
    return line.emitter.concat((name, name), len(shape) - 1)


def _rows(line: Line, table: str, index: object, *, wraps: bool = False) -> Made:
    """Take rows of a table by an index, which the function checks.

    An index out of range is recorded, and replaced by the nearest valid one.

    Args:
        line: the instruction.
        table: name of the table.
        index: the indices of rows.
        wraps: whether negative indices count from the table's end.
    """
    emitter, at = line.emitter, line.get(index)
    count = emitter.shape(table)[0]
    line.note(at, -count if wraps else 0, count)
    if wraps:
        back = emitter.with_number("add", at, count)
        below = emitter.binary("greater", emitter.number(0, INT), at)
        at = emitter.where(below, back, at)
    at = emitter.with_number("maximum", at, 0)
    at = emitter.with_number("minimum", at, count - 1)
    return emitter.rows(table, at)


def _embedding(line: Line, table: object, index: object) -> Made:
    """Look up rows of a table, in the dtype of products.

    So a product that has the same table as its weight shares the constant.
    """
    return _rows(line, line.product_of(table), index)


def _selected(line: Line, x: object, axis: object, index: object) -> Made:
    return _rows(line, line.get(x), index)


def _indexed(line: Line, x: object, indices: object) -> Made:
    assert isinstance(indices, tuple)
    return _rows(line, line.get(x), indices[0], wraps=True)


def _cast(line: Line, x: object, dtype: object) -> Made:
    name, wanted = line.get(x), line.dtypes[0]
    if wanted == FLOAT and line.emitter.dtype(name) == HALF:
        return name
    if wanted == BOOL:
        zero = line.emitter.number(0, line.emitter.dtype(name))
        return line.emitter.binary("not_equal", name, zero)
    return line.emitter.cast(name, wanted)


Emit = Callable[..., Made]
_SAME: Final = {
    f"aten::{name}": partial(_unary, name)
    for name in (
        *("abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid"),
        *("silu", "relu", "erf"),
    )
}
_COMPARED: Final = {
    f"aten::{name}.{kind}": partial(_below, name)
    for name in ("lt", "le", "gt", "ge")
    for kind in ("Tensor", "Scalar")
}
_PAIRS: Final = {
    f"aten::{name}.{kind}": partial(_binary, op)
    for name, op in (
        *(("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "divide")),
        *(("eq", "equal"), ("ne", "not_equal")),
    )
    for kind in ("Tensor", "Scalar")
}
EMITTERS: Final[Mapping[str, Emit]] = {
    **_SAME,
    **_COMPARED,
    **_PAIRS,
    **MOVING,
    "aten::rsub.Scalar": _reversed,
    "aten::maximum": partial(_binary, "maximum"),
    "aten::minimum": partial(_binary, "minimum"),
    "aten::neg": _negative,
    "aten::reciprocal": _reciprocal,
    "aten::pow.Tensor_Scalar": _power,
    "aten::gelu": _gelu,
    "kvc::glu": _glu,
    "aten::logical_and": partial(_binary, "and"),
    "aten::logical_or": partial(_binary, "or"),
    "aten::bitwise_and.Tensor": partial(_binary, "and"),
    "aten::bitwise_or.Tensor": partial(_binary, "or"),
    "aten::logical_not": partial(_unary, "not"),
    "aten::bitwise_not": partial(_unary, "not"),
    "aten::where.self": _where,
    "aten::masked_fill.Scalar": _filled,
    "aten::sum.dim_IntList": partial(_reduce, "sum"),
    "aten::mean.dim": partial(_reduce, "mean"),
    "aten::amax": partial(_reduce, "max"),
    "aten::amin": partial(_reduce, "min"),
    "aten::rms_norm": _rms_norm,
    "aten::layer_norm": _layer_norm,
    "aten::softmax.int": _softmax,
    "aten::linear": _linear,
    "aten::matmul": _product,
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::addmm": _added_product,
    "kvc::rotary_embedding": _rotary,
    "aten::embedding": _embedding,
    "aten::index_select": _selected,
    "aten::index.Tensor": _indexed,
    "aten::_to_copy": _cast,
}
