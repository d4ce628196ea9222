"""Put products of the same quantized rows one after the other.

`silu(gate(x)) * up(x)` is a product, a function of it, and another product. The backend
`cpu` quantizes x and makes both products in one step, where they are side by side. In:
a program. Out: the same, with each such product after the first of the same rows.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Argument, Method, Node, Program
from kvc.compiler.passes.rewrite import each_method

_PRODUCTS = ("kvc::linear_qd8", "kvc::linear_qb4")
_ROWS = 3  # the arguments that rows are: q, scale, zero point


@dataclass(frozen=True, slots=True)
class GatherProducts:
    """Move products up to the first of the same rows."""

    name: ClassVar[str] = "gather-products"

    def run(self, program: Program) -> Program:
        """Return the program with such products side by side."""
        return each_method(program, _gather)


def _gather(method: Method) -> Method:
    made = {value.id for node in method.nodes for value in node.outputs}
    groups: dict[tuple[Argument, ...], list[Node]] = defaultdict(list)
    for node in method.nodes:
        if _may_move(node, made):
            groups[node.arguments[:_ROWS]].append(node)
    nodes: list[Node] = []
    for node in method.nodes:
        if _may_move(node, made):
            nodes += groups.pop(node.arguments[:_ROWS], ())
        else:
            nodes.append(node)
    return replace(method, nodes=tuple(nodes))


def _may_move(node: Node, made: set[int]) -> bool:
    """Tell whether a node is a product whose weights are there from the beginning."""
    return node.op in _PRODUCTS and not made & {v.id for v in node.inputs[_ROWS:]}
