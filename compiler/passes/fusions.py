"""Fuse operators that a model writes one by one: RMS norms, gated units, rotations.

A rotation is that of a rotary position embedding. Each formula is a pattern in this
file. One operator replaces the last of the nodes that a pattern matches; the other
matched nodes become dead code. kvc's kernels round as the matched nodes do, so that
results in float32 stay the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, cast

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.pattern import LAST, Any, Bindings, Makers, Pattern, op
from kvc.compiler.ir.rewrite import each_method
from kvc.schema.dtypes import DType

_X: Final = Any("x")

# RMS norms: `x * rsqrt(mean(x^2, -1) + eps)`, with or without a constant weight of the
# last axis before or after it, as models of transformers write them.

_SQUARE: Final = op("aten::pow.Tensor_Scalar", _X, 2) | (_X * _X)
_MEAN: Final = op("aten::mean.dim", _SQUARE, LAST, True)
_SUM: Final = op("aten::add.Scalar", _MEAN, Any("eps"), 1)
_ROOT: Final = op("aten::rsqrt", _SUM) | op("aten::pow.Tensor_Scalar", _SUM, -0.5)
_NORM: Final = _X * _ROOT
_WEIGHTED: Final = Any("weight") * Any("normed", _NORM)


@dataclass(frozen=True, slots=True)
class FuseRmsNorms:
    """Replace the last product of an RMS norm by one operator."""

    name: ClassVar[str] = "fuse-rms-norms"

    def run(self, program: Program) -> Program:
        """Return the program with each RMS norm as one node."""
        return each_method(program, _fuse_norms)


def _fuse_norms(method: Method) -> Method:
    makers, reads = method.makers(), method.reads()
    constants = {value.id for value, _ in method.constants}

    def fused(node: Node) -> Node:
        for found in _WEIGHTED.matches(node, makers):
            x, weight, normed = _values(found, "x", "weight", "normed")
            row = weight.type.dims == x.type.dims[-1:] and _is_float(weight)
            inner = _is_norm(found, normed) and reads[normed.id] == 1
            if inner and row and weight.id in constants:
                return _norm(node, found, weight)
        for found in _NORM.matches(node, makers):
            if _is_norm(found, node.outputs[0]):
                return _norm(node, found, None)
        return node

    return replace(method, nodes=tuple(map(fused, method.nodes)))


def _is_norm(found: Bindings, normed: Value) -> bool:
    """Tell whether kvc's norm kernel supports the input and result types of a norm."""
    (x,) = _values(found, "x")
    static = bool(x.type.dims) and isinstance(x.type.dims[-1], int)
    same = normed.type == x.type and isinstance(found["eps"], float)
    return static and same and _is_float(x)


def _norm(node: Node, found: Bindings, weight: Value | None) -> Node:
    (x,) = _values(found, "x")
    return replace(
        node, op="aten::rms_norm", arguments=(x, x.type.dims[-1:], weight, found["eps"])
    )


# Gated units: `silu(gate) * up`, or with another activation.

_GLUS: Final[Mapping[str, Pattern]] = {
    name: Any("active", active) * Any("up")
    for name, active in {
        "silu": op("aten::silu", Any("gate")),
        "gelu": op("aten::gelu", Any("gate"), "none"),
        "gelu_tanh": op("aten::gelu", Any("gate"), "tanh"),
    }.items()
}


@dataclass(frozen=True, slots=True)
class FuseGlus:
    """Replace the product of a gated unit by one operator."""

    name: ClassVar[str] = "fuse-glus"

    def run(self, program: Program) -> Program:
        """Return the program with each gated unit as one node."""
        return each_method(program, _fuse_glus)


def _fuse_glus(method: Method) -> Method:
    makers, reads = method.makers(), method.reads()

    def fused(node: Node) -> Node:
        for activation, glu in _GLUS.items():
            for found in glu.matches(node, makers):
                gate, up, active = _values(found, "gate", "up", "active")
                types = {gate.type, up.type, active.type, node.outputs[0].type}
                if len(types) == 1 and _is_float(gate) and reads[active.id] == 1:
                    return replace(
                        node, op="kvc::glu", arguments=(gate, up, activation)
                    )
        return node

    return replace(method, nodes=tuple(map(fused, method.nodes)))


# Rotary position embeddings: the halves of the last axis are turned by an angle.


@dataclass(frozen=True, slots=True)
class _Half(Pattern):
    """Half `number` (0 or 1) of `x` along its last axis, made by a slice or a split."""

    number: int

    def match(
        self, argument: Argument, makers: Makers, bound: Bindings
    ) -> Iterator[Bindings]:
        if not isinstance(argument, Value):
            return
        x, start, end = _part(argument, makers)
        width = None if x is None else x.type.dims[-1]
        if isinstance(width, int) and width % 2 == 0:
            half = width // 2
            if (start, end) == (self.number * half, (self.number + 1) * half):
                yield from _X.match(x, makers, bound)


def _part(value: Value, makers: Makers) -> tuple[Value | None, int, int]:
    """Return (tensor, start, end) if `value` is `tensor[..., start:end]`.

    Return (None, 0, 0) if it is no such slice.
    """
    node, dims = makers.get(value.id), value.type.dims
    if node is None or not dims or not isinstance(dims[-1], int):
        return None, 0, 0
    start: Argument = None
    if node.op == "aten::slice.Tensor":
        _, axis, start, _, step = node.arguments
    elif node.op == "aten::split_with_sizes":
        axis, step = node.arguments[2], 1
        before = node.outputs[: node.outputs.index(value)]
        start = sum(v.type.dims[-1] for v in before if isinstance(v.type.dims[-1], int))
    else:
        return None, 0, 0
    start = 0 if start is None else start
    if axis in (-1, len(dims) - 1) and step == 1 and isinstance(start, int):
        return node.inputs[0], start, start + dims[-1]
    return None, 0, 0


_FIRST: Final = Any("first", _Half(0))
_SECOND: Final = _Half(1)
_COS: Final = Any("cos")
_SIN: Final = Any("sin")
_WHOLE: Final = (_X * _COS) + (op("aten::cat", (-_SECOND, _FIRST), LAST) * _SIN)
_HALVES: Final = op(
    "aten::cat",
    (_FIRST * _COS - _SECOND * _SIN, _SECOND * _COS + _FIRST * _SIN),
    LAST,
)


@dataclass(frozen=True, slots=True)
class FuseRotaryEmbeddings:
    """Replace the last node of a rotary embedding by one operator."""

    name: ClassVar[str] = "fuse-rotary-embeddings"

    def run(self, program: Program) -> Program:
        """Return the program with each rotary embedding as one node."""
        return each_method(program, _fuse_rotary)


def _fuse_rotary(method: Method) -> Method:
    makers = method.makers()

    def fused(node: Node) -> Node:
        for pattern, width in ((_WHOLE, "x"), (_HALVES, "first")):
            for found in pattern.matches(node, makers):
                x, cos, sin, table = _values(found, "x", "cos", "sin", width)
                same = cos.type == sin.type and node.outputs[0].type == x.type
                fits = cos.type.dims[-1:] == table.type.dims[-1:]
                if same and fits and _is_float(x) and _is_float(cos):
                    return replace(
                        node, op="kvc::rotary_embedding", arguments=(x, cos, sin)
                    )
        return node

    return replace(method, nodes=tuple(map(fused, method.nodes)))


def _values(found: Bindings, *names: str) -> tuple[Value, ...]:
    """Return the values that a pattern's names are bound to."""
    return tuple(cast("Value", found[name]) for name in names)


def _is_float(value: Value) -> bool:
    return value.type.dtype is DType.FLOAT32
