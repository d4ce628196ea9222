"""Translate supported operators to calls of MIL.

In: a `Step`, and the operator's arguments with fixed sizes. Out: the result. `EMITTERS`
has a function for each operator, which takes the arguments in the order of the
operator's signature.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreml import moves
from kvc.runtime.delegates.coreml.attention import (
    after,
    attend,
    attend_product,
    update_cache,
)
from kvc.runtime.delegates.coreml.mil import Data, Number, Operand, Step, Tensor
from kvc.schema.graph import Ref

_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm
_LEAST: Final = 6.2e-5  # above the least normal float16
_TINY: Final = 2.0**-24  # the least float16 above 0

Emit = Callable[..., Tensor | list[Tensor]]


def _operand(step: Step, x: object, dtype: str) -> Operand:
    if isinstance(x, Ref):
        return step.read(x, dtype)
    assert isinstance(x, int | float)
    return Number(float(x) if dtype != "int32" else x, dtype)


def _pair(kind: str, step: Step, x: object, y: object, *_: object) -> Tensor:
    one, other = (_operand(step, each, step.dtype) for each in (x, y))
    return moves.fit(step, step.emitter.pair(kind, one, other, step.dtype))


def _reversed(step: Step, x: object, y: object, *_: object) -> Tensor:
    return _pair("sub", step, y, x)


def _same(kind: str, step: Step, x: object) -> Tensor:
    return step.emitter.same(kind, step.read(x, step.dtype))


def _times(factor: float, step: Step, x: object) -> Tensor:
    return _pair("mul", step, x, factor)


def _reciprocal(step: Step, x: object) -> Tensor:
    return _pair("real_div", step, 1.0, x)


def _rsqrt(step: Step, x: object) -> Tensor:
    return _reciprocal_of(step, step.emitter.same("sqrt", step.read(x, step.dtype)))


def _reciprocal_of(step: Step, x: Tensor) -> Tensor:
    return step.emitter.pair("real_div", Number(1.0, x.dtype), x)


def _power(step: Step, x: object, exponent: object) -> Tensor:
    if exponent == 2:
        return _pair("mul", step, x, x)
    return _pair("pow", step, x, exponent)


def _log(step: Step, x: object, plus: float = 0.0) -> Tensor:
    """Return the logarithm of `x` + `plus`.

    Core ML adds an epsilon to the operand; it is set to 0.
    """
    held = step.read(x, step.dtype)
    if plus:
        held = step.emitter.pair("add", held, Number(plus, step.dtype))
    return step.emitter.same("log", held, epsilon=Number(0.0, step.dtype))


def _gelu(step: Step, x: object, approximate: object) -> Tensor:
    mode = "EXACT" if approximate == "none" else "TANH_APPROXIMATION"
    return step.emitter.same("gelu", step.read(x, step.dtype), mode=mode)


def _glu(step: Step, gate: object, up: object, activation: object) -> Tensor:
    name = str(activation)
    x = step.read(gate, step.dtype)
    if name.startswith("gelu"):
        mode = "TANH_APPROXIMATION" if "tanh" in name else "EXACT"
        made = step.emitter.same("gelu", x, mode=mode)
    else:
        made = step.emitter.same(name, x)
    return step.emitter.pair("mul", made, step.read(up, step.dtype))


def _clamp(step: Step, x: object, least: object, most: object) -> Tensor:
    made = step.read(x, step.dtype)
    for kind, bound in (("maximum", least), ("minimum", most)):
        if bound is not None:
            made = step.emitter.pair(kind, made, _operand(step, bound, step.dtype))
    return made


def _compare(kind: str, step: Step, x: object, y: object) -> Tensor:
    dtype = step.common((x, y))
    if dtype == "int32" and any(isinstance(e, float) and e % 1 for e in (x, y)):
        dtype = "fp32"  # an integer is compared with a fraction
    one, other = (_operand(step, each, dtype) for each in (x, y))
    return moves.fit(step, step.emitter.pair(kind, one, other, "bool"))


def _where(step: Step, condition: object, x: object, y: object) -> Tensor:
    emitter = step.emitter
    one, other = (
        emitter.spread(step.read(each, step.dtype), step.shape) for each in (x, y)
    )
    there = emitter.spread(step.read(condition, "bool"), step.shape)
    return emitter.call("select", step.dtype, step.shape, cond=there, a=one, b=other)


def _masked(step: Step, x: object, mask: object, value: object) -> Tensor:
    emitter = step.emitter
    there = emitter.spread(step.read(mask, "bool"), step.shape)
    kept = emitter.spread(step.read(x, step.dtype), step.shape)
    number = _operand(step, value, step.dtype)
    if isinstance(number, Number) and number.dtype == "fp16":
        number = Number(max(-65504.0, min(number.value, 65504.0)), "fp16")
    return emitter.call("select", step.dtype, step.shape, cond=there, a=number, b=kept)


def _convert(step: Step, x: object, *_: object) -> Tensor:
    return step.read(x, step.dtype)


def _reduce(kind: str, step: Step, x: object, axes: object, keep: object) -> Tensor:
    held = step.read(x, step.dtype)
    rank = len(held.shape)
    chosen = axes if isinstance(axes, tuple) and axes else tuple(range(rank))
    along = tuple(sorted(axis % rank for axis in chosen))
    return moves.fit(step, _reduced(step, kind, held, along))


def _reduced(step: Step, kind: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Reduce a tensor along `axes`; each reduced axis keeps size 1."""
    shape = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    return step.emitter.call(
        kind, x.dtype, shape, x=x, axes=tuple(axes), keep_dims=True
    )


def _softmax(step: Step, x: object, axis: object) -> Tensor:
    assert isinstance(axis, int)
    along = axis % len(step.shape)
    return step.emitter.same("softmax", step.read(x, step.dtype), axis=along)


def _linear(step: Step, x: object, weight: object, bias: object) -> Tensor:
    return _multiplied(step, x, step.read(weight, step.dtype), bias)


def _linear_w8(
    step: Step, x: object, weight: object, scale: object, bias: object
) -> Tensor:
    return _multiplied(step, x, _widened(step, weight, scale), bias)


def _widened(step: Step, weight: object, scale: object) -> Tensor:
    """Multiply each row of an int8 matrix [rows, columns] by its scale [rows]."""
    held = step.constant(weight, "int8")
    rows, _ = held.shape
    scales = step.constant(scale, "fp16")
    column = Data(f"{scales.name}_column", scales.data, "fp16", (rows, 1))
    return step.emitter.call(
        "constexpr_blockwise_shift_scale", "fp16", held.shape, data=held, scale=column
    )


def _multiplied(step: Step, x: object, weight: Tensor, bias: object) -> Tensor:
    """Multiply x [..., in] by the transpose of a matrix [out, in], and add the bias."""
    emitter, held = step.emitter, step.read(x, step.dtype)
    rows, width = math.prod(held.shape[:-1]), held.shape[-1]
    flat = emitter.reshape(held, (rows, width))
    count = weight.shape[0]
    if bias is None:  # coremltools would store zeros anew for each call
        added: Tensor = emitter.numbers(np.zeros(count), step.dtype)
    else:
        added = step.read(bias, step.dtype)
    made = emitter.call(
        "linear", step.dtype, (rows, count), x=flat, weight=weight, bias=added
    )
    return moves.fit(step, made)


def _product(step: Step, x: object, y: object) -> Tensor:
    one, other = (step.read(each, step.dtype) for each in (x, y))
    return step.emitter.call("matmul", step.dtype, step.shape, x=one, y=other)


def _added_product(
    step: Step, bias: object, x: object, y: object, *_: object
) -> Tensor:
    return step.emitter.pair("add", _product(step, x, y), step.read(bias, step.dtype))


def _rms_norm(
    step: Step, x: object, _: object, weight: object, epsilon: object
) -> Tensor:
    """Normalize by the root mean square of the last axis.

    Numbers are first divided by the greatest of their row, so that squares fit float16.
    """
    emitter, held = step.emitter, step.read(x, step.dtype)
    last = (len(held.shape) - 1,)
    least = epsilon if isinstance(epsilon, float) else _SMALLEST
    largest = _reduced(step, "reduce_max", emitter.same("abs", held), last)
    largest = emitter.pair("maximum", largest, Number(_LEAST, step.dtype))
    small = emitter.pair("real_div", held, largest)
    mean = _reduced(step, "reduce_mean", emitter.pair("mul", small, small), last)
    root = emitter.pair("real_div", Number(math.sqrt(least), step.dtype), largest)
    mean = emitter.pair("add", mean, emitter.pair("mul", root, root))
    made = emitter.pair("real_div", small, emitter.same("sqrt", mean))
    if weight is None:
        return made
    return emitter.pair("mul", made, step.read(weight, step.dtype))


def _layer_norm(
    step: Step, x: object, _: object, weight: object, bias: object, epsilon: object
) -> Tensor:
    assert isinstance(epsilon, float)
    made = step.emitter.same(
        "layer_norm",
        step.read(x, step.dtype),
        axes=(len(step.shape) - 1,),
        epsilon=Number(max(epsilon, _TINY), step.dtype),
    )
    for kind, given in (("mul", weight), ("add", bias)):
        if given is not None:
            made = step.emitter.pair(kind, made, step.read(given, step.dtype))
    return made


def _rotary(step: Step, x: object, cos: object, sin: object) -> Tensor:
    emitter = step.emitter
    held, cosine, sine = (step.read(each, step.dtype) for each in (x, cos, sin))
    last = len(held.shape) - 1
    half = held.shape[last] // 2
    spans = range(half), range(half, 2 * half)
    one, other = (emitter.part(held, last, span) for span in spans)
    if cosine.shape[-1] == half:
        cosine, sine = (emitter.concat([each] * 2, -1) for each in (cosine, sine))
    turned = emitter.concat(
        [emitter.pair("mul", other, Number(-1, other.dtype)), one], last
    )
    made = emitter.pair("mul", held, cosine)
    return moves.fit(step, emitter.pair("add", made, emitter.pair("mul", turned, sine)))


def _embedding(step: Step, weight: object, indices: object) -> Tensor:
    return _rows(step, step.read(weight, step.dtype), step.read(indices, "int32"))


def _embedding_q8(step: Step, weight: object, scale: object, at: object) -> Tensor:
    return _rows(step, _widened(step, weight, scale), step.read(at, "int32"))


def _rows(step: Step, table: Tensor, indices: Tensor) -> Tensor:
    shape = (*indices.shape, *table.shape[1:])
    made = step.emitter.call(
        "gather", table.dtype, shape, x=table, indices=indices, axis=0
    )
    return moves.fit(step, made)


def _gathered(step: Step, x: object, axis: object, at: object) -> Tensor:
    assert isinstance(axis, int)
    held, indices = step.read(x, step.dtype), step.read(at, "int32")
    along = axis % len(held.shape)
    return step.emitter.call(
        "gather_along_axis", step.dtype, step.shape, x=held, indices=indices, axis=along
    )


def _indexed(step: Step, table: object, indices: object) -> Tensor:
    """Gather along a table's first axis; an index below 0 counts from the end."""
    assert isinstance(indices, tuple)
    held, at = step.read(table, step.dtype), step.read(indices[0], "int32")
    inside = step.emitter.pair("mod", at, Number(held.shape[0], "int32"))
    return _rows(step, held, inside)


_COMPARED: Final = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
_TWO: Final = {"add": "add", "sub": "sub", "mul": "mul", "div": "real_div"}
_ALIKE: Final = "abs exp sqrt relu sigmoid silu tanh sin cos erf floor ceil"
EMITTERS: Final[Mapping[str, Emit]] = {
    **{f"aten::{op}.Tensor": partial(_pair, kind) for op, kind in _TWO.items()},
    **{f"aten::{op}.Scalar": partial(_pair, kind) for op, kind in _TWO.items()},
    **{f"aten::{op}.Tensor": partial(_compare, k) for op, k in _COMPARED.items()},
    **{f"aten::{op}.Scalar": partial(_compare, k) for op, k in _COMPARED.items()},
    **{f"aten::{op}": partial(_same, op) for op in _ALIKE.split()},
    **{f"aten::{op}": partial(_pair, op) for op in ("maximum", "minimum")},
    "aten::rsub.Scalar": _reversed,
    "aten::neg": partial(_times, -1),
    "aten::reciprocal": _reciprocal,
    "aten::rsqrt": _rsqrt,
    "aten::pow.Tensor_Scalar": _power,
    "aten::gelu": _gelu,
    "kvc::glu": _glu,
    "aten::clamp": _clamp,
    "aten::logical_and": partial(_pair, "logical_and"),
    "aten::logical_or": partial(_pair, "logical_or"),
    "aten::logical_xor": partial(_pair, "logical_xor"),
    "aten::logical_not": partial(_same, "logical_not"),
    "aten::bitwise_and.Tensor": partial(_pair, "logical_and"),
    "aten::bitwise_or.Tensor": partial(_pair, "logical_or"),
    "aten::bitwise_not": partial(_same, "logical_not"),
    "aten::where.self": _where,
    "aten::masked_fill.Scalar": _masked,
    "aten::_to_copy": _convert,
    **{f"aten::{op}": moves.reshape for op in ("clone", "reshape", "alias", "view")},
    **{f"aten::{op}": moves.reshape for op in ("unsqueeze", "squeeze.dims")},
    "aten::copy": moves.copy,
    "aten::transpose.int": moves.transpose,
    "aten::permute": moves.permute,
    "aten::slice.Tensor": moves.slice_,
    "aten::select.int": moves.select,
    "aten::split_with_sizes": moves.split,
    "aten::expand": moves.expand,
    "aten::repeat": moves.repeat,
    "aten::cat": moves.cat,
    "aten::stack": moves.stack,
    "aten::full": moves.full,
    "aten::arange.start_step": moves.arange,
    "aten::sum.dim_IntList": partial(_reduce, "reduce_sum"),
    "aten::mean.dim": partial(_reduce, "reduce_mean"),
    "aten::amax": partial(_reduce, "reduce_max"),
    "aten::amin": partial(_reduce, "reduce_min"),
    "aten::softmax.int": _softmax,
    "aten::linear": _linear,
    "kvc::linear_w8": _linear_w8,
    **{f"aten::{op}": _product for op in ("matmul", "mm", "bmm")},
    "aten::addmm": _added_product,
    "aten::rms_norm": _rms_norm,
    "aten::layer_norm": _layer_norm,
    "kvc::rotary_embedding": _rotary,
    "aten::embedding": _embedding,
    "kvc::embedding_q8": _embedding_q8,
    "aten::index.Tensor": _indexed,
    "aten::gather": _gathered,
    "aten::log": _log,
    "aten::log1p": partial(_log, plus=1.0),
    "aten::pow.Scalar": partial(_pair, "pow"),
    "aten::scaled_dot_product_attention": attend_product,
    "kvc::attention": attend,
    "kvc::cache_update": update_cache,
    "kvc::after": after,
}
