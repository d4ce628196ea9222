"""Fuse RMS norms that are written as several operators into `aten::rms_norm`.

`x * rsqrt(mean(x^2, -1) + eps)`, with or without a constant weight of the last axis
before or after it, is how models of transformers write the norm: six nodes, each over a
whole activation. kvc's kernel rounds as these do, so nothing changes in float32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.rewrite import each_method, factors
from kvc.schema.dtypes import DType


@dataclass(frozen=True, slots=True)
class FuseRmsNorms:
    """Replace the last product of a norm; the nodes before it become dead."""

    name: ClassVar[str] = "fuse-rms-norms"

    def run(self, program: Program) -> Program:
        """Return the program with one node for each norm."""
        return each_method(program, _fuse)


@dataclass(frozen=True, slots=True)
class _Norm:
    """A norm without weight: its input and eps."""

    x: Value
    eps: float


def _fuse(method: Method) -> Method:
    makers = method.makers()
    reads = method.reads()
    constants = {value.id for value, _ in method.constants}
    norms: dict[int, _Norm] = {}
    nodes = []
    for node in method.nodes:
        weighted = _weighted(node, norms, constants, reads)
        norm = _norm(node, makers)
        if weighted is not None:
            node = _fused(node, *weighted)
        elif norm is not None:
            norms[node.outputs[0].id] = norm
            node = _fused(node, norm, None)
        nodes.append(node)
    return replace(method, nodes=tuple(nodes))


def _fused(node: Node, norm: _Norm, weight: Value | None) -> Node:
    arguments = (norm.x, norm.x.type.dims[-1:], weight, norm.eps)
    return replace(node, op="aten::rms_norm", arguments=arguments)


def _norm(node: Node, makers: Mapping[int, Node]) -> _Norm | None:
    """Return the norm that a product computes, None for another product."""
    for x, factor in factors(node):
        dims = x.type.dims
        plain = x.type.dtype is DType.FLOAT32 and dims and isinstance(dims[-1], int)
        eps = _eps(x, makers.get(factor.id), makers) if plain else None
        if eps is not None and node.outputs[0].type == x.type:
            return _Norm(x, eps)
    return None


def _weighted(
    node: Node,
    norms: Mapping[int, _Norm],
    constants: set[int],
    reads: Mapping[int, int],
) -> tuple[_Norm, Value] | None:
    """Return the norm and weight of a product, None for another product."""
    for weight, normed in factors(node):
        norm = norms.get(normed.id)
        if norm is None or weight.id not in constants or reads[normed.id] > 1:
            continue
        if (
            weight.type.dtype is DType.FLOAT32
            and weight.type.dims == norm.x.type.dims[-1:]
        ):
            return norm, weight
    return None


def _eps(x: Value, root: Node | None, makers: Mapping[int, Node]) -> float | None:
    """Return eps if a node computes `rsqrt(mean(x^2, -1) + eps)`."""
    if root is None or not _is_root(root):
        return None
    total = makers.get(root.inputs[0].id)
    if total is None or total.op != "aten::add.Scalar" or total.arguments[2] != 1:
        return None
    mean, eps = makers.get(total.inputs[0].id), total.arguments[1]
    if mean is None or mean.op != "aten::mean.dim" or not isinstance(eps, float):
        return None
    last = len(x.type.dims) - 1
    if mean.arguments[1:] not in (((-1,), True), ((last,), True)):
        return None
    square = makers.get(mean.inputs[0].id)
    return eps if square is not None and _is_square(square, x) else None


def _is_root(node: Node) -> bool:
    power = node.op == "aten::pow.Tensor_Scalar" and node.arguments[1] == -0.5
    return power or node.op == "aten::rsqrt"


def _is_square(node: Node, x: Value) -> bool:
    power = node.op == "aten::pow.Tensor_Scalar" and node.arguments == (x, 2)
    return power or (node.op == "aten::mul.Tensor" and node.arguments == (x, x))


# Fuse `silu(gate) * up`, and other gated units, into `kvc::glu`.


@dataclass(frozen=True, slots=True)
class FuseGlus:
    """Replace the product of a gated unit; the activation becomes dead."""

    name: ClassVar[str] = "fuse-glus"

    def run(self, program: Program) -> Program:
        """Return the program with one node for each gated unit."""
        return each_method(program, _fuse_glu)


def _fuse_glu(method: Method) -> Method:
    makers = method.makers()
    reads = method.reads()
    nodes = (_fused_glu(node, makers, reads) for node in method.nodes)
    return replace(method, nodes=tuple(nodes))


def _fused_glu(
    node: Node, makers: Mapping[int, Node], reads: Mapping[int, int]
) -> Node:
    for active, up in factors(node):
        maker = makers.get(active.id)
        activation = "" if maker is None else _activation(maker)
        if maker is None or not activation or reads[active.id] > 1:
            continue
        gate = maker.inputs[0]
        types = {gate.type, up.type, active.type, node.outputs[0].type}
        if len(types) == 1 and gate.type.dtype is DType.FLOAT32:
            return replace(node, op="kvc::glu", arguments=(gate, up, activation))
    return node


def _activation(node: Node) -> str:
    if node.op == "aten::silu":
        return "silu"
    if node.op == "aten::gelu":
        return "gelu_tanh" if node.arguments[1] == "tanh" else "gelu"
    return ""


# Fuse rotary position embeddings that are written as many operators.


_Makers = Mapping[int, Node]
_Turn = tuple[Value, Value, Value]  # x, cos, sin


@dataclass(frozen=True, slots=True)
class FuseRotaryEmbeddings:
    """Replace the last node of an embedding; the nodes before it become dead."""

    name: ClassVar[str] = "fuse-rotary-embeddings"

    def run(self, program: Program) -> Program:
        """Return the program with one node for each rotary embedding."""
        return each_method(program, _fuse_rotary)


def _fuse_rotary(method: Method) -> Method:
    makers = method.makers()
    nodes = (_fused_rotary(node, makers) for node in method.nodes)
    return replace(method, nodes=tuple(nodes))


def _fused_rotary(node: Node, makers: _Makers) -> Node:
    if (
        node.op not in ("aten::add.Tensor", "aten::cat")
        or not node.outputs[0].type.dims
    ):
        return node
    for turn in (*_of_a_whole(node, makers), *_of_halves(node, makers)):
        x, cos, sin = turn
        floats = {each.type.dtype for each in turn} == {DType.FLOAT32}
        if floats and cos.type == sin.type and node.outputs[0].type == x.type:
            return replace(node, op="kvc::rotary_embedding", arguments=turn)
    return node


def _of_a_whole(node: Node, makers: _Makers) -> Iterator[_Turn]:
    """Yield the operands of a rotation `x * cos + cat(-second, first) * sin`."""
    for straight, across in _terms(node, makers):
        for turned, sin in factors(across):
            joined = _concatenated(turned, makers)
            minus = makers.get(joined[0].id) if joined else None
            if minus is None or minus.op != "aten::neg":
                continue
            x = _of_both_halves(joined[1], minus.inputs[0], makers)
            for whole, cos in factors(straight):
                if whole == x and cos.type.dims[-1:] == x.type.dims[-1:]:
                    yield x, cos, sin


def _of_halves(node: Node, makers: _Makers) -> Iterator[_Turn]:
    """Yield the operands of a rotation of two halves.

    It has the form `cat(first cos - second sin, second cos + first sin)`.
    """
    joined = _concatenated(node.outputs[0], makers)
    difference = makers.get(joined[0].id) if joined else None
    total = makers.get(joined[1].id) if joined else None
    if difference is None or total is None or not _is_plain(difference, "sub"):
        return
    minuend, subtrahend = (makers.get(v.id) for v in difference.inputs)
    if minuend is None or subtrahend is None:
        return
    wanted = [
        (x, cos, sin, {first.id, sin.id}, {second.id, cos.id})
        for first, cos in factors(minuend)
        for second, sin in factors(subtrahend)
        if (x := _of_both_halves(first, second, makers)) is not None
        and cos.type.dims[-1:] == first.type.dims[-1:]
    ]
    for one, other in _terms(total, makers):
        read = {v.id for v in one.inputs}, {v.id for v in other.inputs}
        products = one.op == other.op == "aten::mul.Tensor"
        yield from (w[:3] for w in wanted if products and w[3:] == read)


def _terms(node: Node, makers: _Makers) -> Iterator[tuple[Node, Node]]:
    """Yield the nodes of the two terms of a sum, in both orders."""
    if _is_plain(node, "add"):
        a, b = (makers.get(v.id) for v in node.inputs)
        if a is not None and b is not None:
            yield a, b
            yield b, a


def _is_plain(node: Node, name: str) -> bool:
    both = node.op == f"aten::{name}.Tensor" and len(node.inputs) == 2
    return both and node.arguments[2] == 1


def _concatenated(value: Value, makers: _Makers) -> tuple[Value, ...]:
    """Return the two values concatenated along the last axis, or nothing."""
    node = makers.get(value.id)
    if node is None or node.op != "aten::cat" or len(node.inputs) != 2:
        return ()
    return node.inputs if _is_last(node.arguments[1], value) else ()


def _of_both_halves(first: Value, second: Value, makers: _Makers) -> Value | None:
    """Return the value whose halves are two values, in this order."""
    (x, *start), (whole, *rest) = _part(first, makers), _part(second, makers)
    if x is None or x != whole:
        return None
    width = x.type.dims[-1]
    if not isinstance(width, int) or width % 2:
        return None
    halves = [0, width // 2], [width // 2, width]
    return x if (start, rest) == halves else None


def _part(value: Value, makers: _Makers) -> tuple[Value | None, int, int]:
    """Return the value that a value is a slice of, and its range on the last axis."""
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
    if _is_last(axis, value) and step == 1 and isinstance(start, int):
        return node.inputs[0], start, start + dims[-1]
    return None, 0, 0


def _is_last(axis: object, value: Value) -> bool:
    return axis in (-1, len(value.type.dims) - 1)
