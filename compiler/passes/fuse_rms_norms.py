"""Turn RMS norms that are written as several ops into `aten::rms_norm`.

`x * rsqrt(mean(x^2, -1) + eps)`, with or without a constant weight of the last axis
before or after it, is how models of transformers write the norm: six nodes, each over a
whole activation. kvc's kernel rounds as these do, so nothing changes in float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.ir.rewrite import each_method, factors
from kvc.schema.dtypes import DType


@dataclass(frozen=True, slots=True)
class FuseRmsNorms:
    """Replace the last product of a norm; what leads to it is dead then."""

    name: ClassVar[str] = "fuse-rms-norms"

    def run(self, program: Program) -> Program:
        """Return the program with its norms in one node each."""
        return each_method(program, _fuse)


@dataclass(frozen=True, slots=True)
class _Norm:
    """What is normalised, without a weight."""

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
    """Return what a product normalises, None where it is another product."""
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
    """Return norm and weight of a product, None where it is another product."""
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
    """Return eps where a node makes `rsqrt(mean(x^2, -1) + eps)`."""
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
