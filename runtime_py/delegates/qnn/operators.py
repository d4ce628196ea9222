"""Translate supported operators to nodes of ONNX.

In: a `Step`, and the operator's arguments with fixed sizes. Out: the name of the result
or the names of the results. `EMITTERS` has a function for each operator, which takes
the arguments in the order of the operator's signature. A view of a tensor that the
device computes becomes a copy.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.delegates.qnn import curves
from kvc.runtime.delegates.qnn.ranges import LARGEST_BIAS
from kvc.runtime.delegates.qnn.steps import Made, Step

_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm


def _apply(op: str, step: Step, *tensors: object) -> Made:
    """Apply an operator of ONNX to tensors, each with as many axes as the result."""
    names = [step.read(each) for each in tensors]
    rank = len(step.shape)
    wide = [step.widened(n, rank, f"wide{i}") for i, n in enumerate(names)]
    return step.node(op, *wide)


def _sum(op: str, step: Step, one: object, other: object, alpha: object) -> Made:
    return _apply(op, step, one, other)


def _with_number(op: str, step: Step, x: object, number: object, *_: object) -> Made:
    assert isinstance(number, int | float)
    return step.node(op, step.read(x), step.number("number", number))


def _over_number(step: Step, x: object, number: object) -> Made:
    assert isinstance(number, int | float)
    return step.emitter.divided(step.read(x), number, step.name, step.shape)


def _square(step: Step, x: object, exponent: object) -> Made:
    name = step.read(x)
    return step.node("Mul", name, name)


def _silu(step: Step, x: object) -> Made:
    return _gate(step, step.read(x), "silu", step.name)


def _gelu(step: Step, x: object, approximate: object) -> Made:
    kind = "gelu_tanh" if approximate == "tanh" else "gelu"
    return _gate(step, step.read(x), kind, step.name)


def _gate(step: Step, x: str, kind: str, output: str) -> str:
    """Add nodes for the activation `kind` of `x`."""
    emitter, shape = step.emitter, step.shape_of(x)
    if not emitter.is_fixed:
        if kind == "silu":
            return curves.silu(emitter, x, output)
        return curves.gelu(emitter, x, kind, output)
    reach = emitter.gated(x, kind)
    if kind == "silu":
        y = emitter.node("Sigmoid", (x,), f"{output}_sigmoid", shape)
        return emitter.node("Mul", (x, y), output, shape, reach=reach)
    approximate = "tanh" if kind == "gelu_tanh" else "none"
    return emitter.node(
        "Gelu", (x,), output, shape, reach=reach, approximate=approximate
    )


def _glu(step: Step, gate: object, up: object, activation: object) -> Made:
    assert isinstance(activation, str)
    opened = _gate(step, step.read(gate), activation, f"{step.name}_gate")
    return step.node("Mul", opened, step.read(up))


def _linear(step: Step, x: object, weight: object, bias: object) -> Made:
    turned = step.weight(weight, True)
    if bias is None:
        return step.node("MatMul", step.read(x), turned)
    y = step.node("MatMul", step.read(x), turned, part="product", shape=step.shape)
    return step.node("Add", y, step.widened(step.read(bias), len(step.shape), "bias"))


def _product(step: Step, one: object, other: object) -> Made:
    return step.node("MatMul", step.read(one), step.read(other))


def _added_product(
    step: Step, x: object, one: object, other: object, beta: object, alpha: object
) -> Made:
    y = step.node(
        "MatMul", step.read(one), step.read(other), part="product", shape=step.shape
    )
    return step.node("Add", y, step.widened(step.read(x), len(step.shape), "bias"))


def _rms_norm(step: Step, x: object, axes: object, weight: object, eps: object) -> Made:
    least = eps if isinstance(eps, float) else _SMALLEST
    inputs = (step.read(x), step.read(weight))
    return step.emitter.node(
        "RMSNormalization", inputs, step.name, step.shape, axis=-1, epsilon=least
    )


def _layer_norm(
    step: Step, x: object, axes: object, weight: object, bias: object, eps: object
) -> Made:
    assert isinstance(eps, float)
    given = (x, weight) if bias is None else (x, weight, bias)
    inputs = tuple(step.read(each) for each in given)
    return step.emitter.node(
        "LayerNormalization", inputs, step.name, step.shape, axis=-1, epsilon=eps
    )


def _softmax(step: Step, x: object, axis: object) -> Made:
    return step.softmax(step.read(x), step.name)


def _sigmoid(step: Step, x: object) -> Made:
    if step.emitter.is_fixed:
        return step.node("Sigmoid", step.read(x))
    return curves.sigmoid(step.emitter, step.read(x), step.name)


def _exponential(step: Step, x: object) -> Made:
    return curves.exponential(step.emitter, step.read(x), step.name)


def _rotary(step: Step, x: object, cos: object, sin: object) -> Made:
    """Rotate: return [first cos - second sin, second cos + first sin].

    First and second are the halves of the last axis.
    """
    name, emitter = step.read(x), step.emitter
    axis, half = len(step.shape) - 1, step.shape[-1] // 2
    spans = {"first": range(half), "second": range(half, 2 * half)}
    halves = {
        key: emitter.part(name, f"{step.name}_{key}", axis, span)
        for key, span in spans.items()
    }
    made = []
    for key, other, op in (("first", "second", "Sub"), ("second", "first", "Add")):
        shape = step.shape_of(halves[key])
        tables = [
            _table(step, each, f"{key}_{kind}", axis, spans[key])
            for each, kind in ((cos, "cos"), (sin, "sin"))
        ]
        even = step.node("Mul", halves[key], tables[0], part=f"{key}_even", shape=shape)
        odd = step.node("Mul", halves[other], tables[1], part=f"{key}_odd", shape=shape)
        made.append(
            step.node(op, even, odd, part=f"{key}_turned", shape=shape, like=step.name)
        )
    return emitter.node("Concat", made, step.name, step.shape, axis=axis)


def _table(step: Step, table: object, key: str, axis: int, span: range) -> str:
    """Return the cosines or sines for one half of the rotated axis.

    A table that is as wide as a half is used for both halves.

    Args:
        step: the instruction.
        table: the table.
        key: part of the name of the result.
        axis: index of the last axis.
        span: the indices of the half.
    """
    name = step.widened(step.read(table), len(step.shape), key)
    if step.shape_of(name)[-1] == len(span):
        return name
    return step.emitter.part(name, f"{step.name}_{key}_half", axis, span)


def _attention_product(
    step: Step,
    q: object,
    k: object,
    v: object,
    mask: object,
    causal: object,
    scale: object,
    grouped: object,
) -> Made:
    names = [step.read(each) for each in (q, k, v)]
    sizes, keys = step.shape_of(names[0]), step.shape_of(names[1])
    factor = scale if isinstance(scale, float) else 1 / np.sqrt(sizes[-1])
    bias = None if mask is None else _kept_finite(step, step.read(mask))
    content = (names[1], names[2])
    return step.attend(
        names[0], sizes, content, keys[1], keys[2], float(factor), None, bias, None
    )


def _kept_finite(step: Step, mask: str) -> str:
    """Clip a mask to finite numbers, since a row of only `-inf` would give NaN."""
    least = step.number("least", -LARGEST_BIAS)
    shape = step.shape_of(mask)
    return step.widened(
        step.node("Max", mask, least, part="hiding", shape=shape), 4, "mask"
    )


def _cat(step: Step, tensors: object, axis: object) -> Made:
    assert isinstance(tensors, tuple)
    assert isinstance(axis, int)
    inputs = tuple(step.read(each) for each in tensors)
    along = axis % len(step.shape)
    return step.emitter.node("Concat", inputs, step.name, step.shape, axis=along)


def _reshape(step: Step, x: object, *_: object) -> Made:
    return step.emitter.reshape(step.read(x), step.name, step.shape)


def _transpose(step: Step, x: object, one: object, other: object) -> Made:
    assert isinstance(one, int)
    assert isinstance(other, int)
    order = list(range(len(step.shape)))
    order[one], order[other] = order[other], order[one]
    return _permute(step, x, tuple(order))


def _permute(step: Step, x: object, order: object) -> Made:
    assert isinstance(order, tuple)
    rank = len(step.shape)
    return step.emitter.node(
        "Transpose",
        (step.read(x),),
        step.name,
        step.shape,
        perm=tuple(axis % rank for axis in order),
    )


def _slice(
    step: Step, x: object, axis: object, start: object, end: object, by: object
) -> Made:
    assert isinstance(axis, int)
    assert isinstance(by, int)
    name = step.read(x)
    shape = step.shape_of(name)
    along = axis % len(shape)
    span = range(shape[along])[_bound(start) : _bound(end) : by]
    return step.emitter.part(name, step.name, along, span)


def _bound(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _select(step: Step, x: object, axis: object, index: object) -> Made:
    assert isinstance(axis, int)
    assert isinstance(index, int)
    name = step.read(x)
    shape = step.shape_of(name)
    along = axis % len(shape)
    at = index % shape[along]
    one = step.emitter.part(name, f"{step.name}_row", along, range(at, at + 1))
    return step.emitter.reshape(one, step.name, step.shape)


def _split(step: Step, x: object, sizes: object, axis: object) -> Made:
    assert isinstance(sizes, tuple)
    assert isinstance(axis, int)
    name = step.read(x)
    along, start = axis % len(step.shape_of(name)), 0
    made = []
    for output, size in zip(step.names, sizes, strict=True):
        made.append(step.emitter.part(name, output, along, range(start, start + size)))
        start += size
    return made


def _expand(step: Step, x: object, shape: object) -> Made:
    name = step.widened(step.read(x), len(step.shape), "wide")
    if step.shape_of(name) == step.shape:
        return name
    sizes = step.emitter.integers(f"{step.name}_shape", step.shape)
    return step.node("Expand", name, sizes)


Emit = Callable[..., Made]
EMITTERS: Final[Mapping[str, Emit]] = {
    "aten::add.Tensor": partial(_sum, "Add"),
    "aten::sub.Tensor": partial(_sum, "Sub"),
    "aten::mul.Tensor": partial(_apply, "Mul"),
    "aten::div.Tensor": partial(_apply, "Div"),
    "aten::maximum": partial(_apply, "Max"),
    "aten::minimum": partial(_apply, "Min"),
    "aten::add.Scalar": partial(_with_number, "Add"),
    "aten::sub.Scalar": partial(_with_number, "Sub"),
    "aten::mul.Scalar": partial(_with_number, "Mul"),
    "aten::div.Scalar": _over_number,
    "aten::pow.Tensor_Scalar": _square,
    "aten::neg": partial(_apply, "Neg"),
    "aten::abs": partial(_apply, "Abs"),
    "aten::exp": _exponential,
    "aten::sqrt": partial(_apply, "Sqrt"),
    "aten::relu": partial(_apply, "Relu"),
    "aten::sigmoid": _sigmoid,
    "aten::tanh": partial(_apply, "Tanh"),
    "aten::silu": _silu,
    "aten::gelu": _gelu,
    "kvc::glu": _glu,
    "aten::linear": _linear,
    "aten::matmul": _product,
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::addmm": _added_product,
    "aten::rms_norm": _rms_norm,
    "aten::layer_norm": _layer_norm,
    "aten::softmax.int": _softmax,
    "kvc::rotary_embedding": _rotary,
    "aten::scaled_dot_product_attention": _attention_product,
    "aten::cat": _cat,
    "aten::clone": _reshape,
    "aten::reshape": _reshape,
    "aten::alias": _reshape,
    "aten::view": _reshape,
    "aten::unsqueeze": _reshape,
    "aten::squeeze.dims": _reshape,
    "aten::transpose.int": _transpose,
    "aten::permute": _permute,
    "aten::slice.Tensor": _slice,
    "aten::select.int": _select,
    "aten::split_with_sizes": _split,
    "aten::expand": _expand,
}
