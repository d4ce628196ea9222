"""The operators of the list, each as nodes of ONNX.

In: a `Step`, and the operator's arguments with sizes settled. Out: the name of the
result, or of several. `EMITTERS` has a function for each operator, in the table's order
of arguments; views of what the device makes are copies there.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.delegates.qnn.emitting import Emitter, Shape
from kvc.runtime.delegates.qnn.sights import LARGEST_BIAS
from kvc.schema.frozen import frozen

Made = str | list[str]
_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm


@frozen
class Step:
    """An instruction that is being translated.

    Attributes:
        emitter: takes its nodes.
        read: returns the device's name of a tensor.
        names: for its results.
        shapes: of its results.
        weight: returns the name of a constant, transposed if asked for.
    """

    emitter: Emitter
    read: Callable[[object], str]
    names: Sequence[str]
    shapes: Sequence[Shape]
    weight: Callable[[object, bool], str]

    @property
    def name(self) -> str:
        """The name for its only result."""
        return self.names[0]

    @property
    def shape(self) -> Shape:
        """The shape of its only result."""
        return self.shapes[0]

    def shape_of(self, name: str) -> Shape:
        """Return the shape of what has a name."""
        return self.emitter.shapes[name]

    def node(
        self, op: str, *inputs: str, part: str = "", shape: Shape | None = None
    ) -> str:
        """Add a node; what is made is the result, or a part on the way to it."""
        output = f"{self.name}_{part}" if part else self.name
        made = self.shape if shape is None else shape
        return self.emitter.node(op, inputs, output, made)

    def number(self, part: str, value: float) -> str:
        """Return the name of a number."""
        return self.emitter.number(f"{self.name}_{part}", value)

    def widened(self, name: str, rank: int, part: str) -> str:
        """Return a tensor with axes of size 1 before its own, up to a rank."""
        shape = self.shape_of(name)
        wide = (*(1,) * (rank - len(shape)), *shape)
        return self.emitter.reshape(name, f"{self.name}_{part}", wide)

    def attend(
        self,
        q: str,
        sizes: Shape,
        content: tuple[str, str],
        groups: int,
        columns: int,
        scale: float,
        softcap: float | None,
        bias: str | None,
        seeing: str | None,
    ) -> str:
        """Add attention.

        Args:
            q: [batch, heads, queries, width].
            sizes: of q.
            content: keys and values [batch, groups, columns, ...].
            groups: heads of keys, each shared by neighbouring heads of queries.
            columns: how many keys.
            scale: factor on the scores.
            softcap: as of `kvc::attention`.
            bias: to add to scores [batch, heads, queries, columns], or None.
            seeing: factor on the weights of each query, or None.
        """
        batch, heads, queries, width = sizes
        keys, values = content
        rows = heads // groups * queries
        emitter, name = self.emitter, self.name
        factor = self.number("scale", scale)
        x = self.node("Mul", q, factor, part="scaled", shape=sizes)
        x = emitter.reshape(x, f"{name}_grouped", (batch, groups, rows, width))
        turned = (batch, groups, width, columns)
        y = emitter.node(
            "Transpose", (keys,), f"{name}_keys", turned, perm=(0, 1, 3, 2)
        )
        grouped = (batch, groups, rows, columns)
        x = self.node("MatMul", x, y, part="products", shape=grouped)
        apart = (batch, heads, queries, columns)
        x = emitter.reshape(x, f"{name}_scores", apart)
        if softcap is not None:
            x = self._capped(x, softcap, apart)
        if bias is not None:
            x = self.node("Add", x, bias, part="biased", shape=apart)
        x = emitter.node("Softmax", (x,), f"{name}_weights", apart, axis=-1)
        if seeing is not None:
            # Not on what is mixed: there the library made a program that crashes.
            x = self.node("Mul", x, seeing, part="counted", shape=apart)
        x = emitter.reshape(x, f"{name}_shares", grouped)
        mixed = (batch, groups, rows, self.shape[-1])
        x = self.node("MatMul", x, values, part="mixed", shape=mixed)
        return emitter.reshape(x, name, self.shape)

    def _capped(self, x: str, softcap: float, shape: Shape) -> str:
        cap = self.number("cap", softcap)
        x = self.node("Div", x, cap, part="over", shape=shape)
        x = self.node("Tanh", x, part="tanh", shape=shape)
        return self.node("Mul", x, cap, part="capped", shape=shape)


def _apply(op: str, step: Step, *tensors: object) -> Made:
    """Apply an operator of ONNX to tensors that are broadcast to one rank."""
    names = [step.read(each) for each in tensors]
    rank = len(step.shape)
    wide = [step.widened(n, rank, f"wide{i}") for i, n in enumerate(names)]
    return step.node(op, *wide)


def _sum(op: str, step: Step, one: object, other: object, alpha: object) -> Made:
    return _apply(op, step, one, other)


def _with_number(op: str, step: Step, x: object, number: object, *_: object) -> Made:
    assert isinstance(number, int | float)
    return step.node(op, step.read(x), step.number("number", number))


def _square(step: Step, x: object, exponent: object) -> Made:
    name = step.read(x)
    return step.node("Mul", name, name)


def _silu(step: Step, x: object) -> Made:
    return _gate(step, step.read(x), "silu", step.name)


def _gelu(step: Step, x: object, approximate: object) -> Made:
    kind = "gelu_tanh" if approximate == "tanh" else "gelu"
    return _gate(step, step.read(x), kind, step.name)


def _gate(step: Step, x: str, kind: str, output: str) -> str:
    """Add an activation."""
    emitter, shape = step.emitter, step.shape_of(x)
    if kind == "silu":
        y = emitter.node("Sigmoid", (x,), f"{output}_sigmoid", shape)
        return emitter.node("Mul", (x, y), output, shape)
    approximate = "tanh" if kind == "gelu_tanh" else "none"
    return emitter.node("Gelu", (x,), output, shape, approximate=approximate)


def _glu(step: Step, gate: object, up: object, activation: object) -> Made:
    assert isinstance(activation, str)
    opened = _gate(step, step.read(gate), activation, f"{step.name}_gate")
    return step.node("Mul", opened, step.read(up))


def _linear(step: Step, x: object, weight: object, bias: object) -> Made:
    turned = step.weight(weight, True)
    if bias is None:
        return step.node("MatMul", step.read(x), turned)
    y = step.node("MatMul", step.read(x), turned, part="product", shape=step.shape)
    added = step.widened(step.read(bias), len(step.shape), "bias")
    return step.node("Add", y, added)


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
    inputs = (step.read(x),)
    return step.emitter.node("Softmax", inputs, step.name, step.shape, axis=-1)


def _rotary(step: Step, x: object, cos: object, sin: object) -> Made:
    """Add x cos + [-second half, first half] sin."""
    name, shape, emitter = step.read(x), step.shape, step.emitter
    axis, half = len(shape) - 1, shape[-1] // 2
    first = emitter.part(name, f"{step.name}_first", axis, range(half))
    second = emitter.part(name, f"{step.name}_second", axis, range(half, 2 * half))
    back = step.node("Neg", second, part="back", shape=step.shape_of(second))
    turned = emitter.node(
        "Concat", (back, first), f"{step.name}_turned", shape, axis=axis
    )
    tables = [_table(step, each, key) for each, key in ((cos, "cos"), (sin, "sin"))]
    one = step.node("Mul", name, tables[0], part="even", shape=shape)
    other = step.node("Mul", turned, tables[1], part="odd", shape=shape)
    return step.node("Add", one, other)


def _table(step: Step, table: object, key: str) -> str:
    """Return cosines or sines for all of the last axis."""
    name = step.widened(step.read(table), len(step.shape), key)
    shape, width = step.shape_of(name), step.shape[-1]
    if shape[-1] == width:
        return name
    wide = (*shape[:-1], width)
    both = f"{step.name}_{key}s"
    return step.emitter.node("Concat", (name, name), both, wide, axis=len(wide) - 1)


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
    """Return a mask whose rows of `-inf` alone make no softmax of nothing."""
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
        span = range(start, start + size)
        made.append(step.emitter.part(name, output, along, span))
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
    "aten::div.Scalar": partial(_with_number, "Div"),
    "aten::pow.Tensor_Scalar": _square,
    "aten::neg": partial(_apply, "Neg"),
    "aten::abs": partial(_apply, "Abs"),
    "aten::exp": partial(_apply, "Exp"),
    "aten::sqrt": partial(_apply, "Sqrt"),
    "aten::relu": partial(_apply, "Relu"),
    "aten::sigmoid": partial(_apply, "Sigmoid"),
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
