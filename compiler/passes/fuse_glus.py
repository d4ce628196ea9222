"""Fuse `silu(gate) * up`, and other gated units, into `kvc::glu`.

Feed-forward blocks of gated linear units (Shazeer 2020) compute this. As two ops, they
store the activated gate and read it again. The fused op rounds as the two do. In: a
program. Out: the same, with each such product of float32 in one node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program
from kvc.compiler.ir.rewrite import each_method, factors
from kvc.schema.dtypes import DType


@dataclass(frozen=True, slots=True)
class FuseGlus:
    """Replace the product; the activation is dead then."""

    name: ClassVar[str] = "fuse-glus"

    def run(self, program: Program) -> Program:
        """Return the program with its gated units in one node each."""
        return each_method(program, _fuse)


def _fuse(method: Method) -> Method:
    makers = method.makers()
    reads = method.reads()
    nodes = (_fused(node, makers, reads) for node in method.nodes)
    return replace(method, nodes=tuple(nodes))


def _fused(node: Node, makers: Mapping[int, Node], reads: Mapping[int, int]) -> Node:
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
