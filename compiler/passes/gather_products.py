"""Put products of the same quantized rows one after the other.

`silu(gate(x)) * up(x)` is a product, a function of it, and another product. The backend
`cpu` quantizes x and makes both products in one step, where they are side by side. In:
a program. Out: the same, with each such product after the first of the same rows.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Argument, Method, Node, Program
from kvc.compiler.ir.rewrite import each_method
from kvc.schema.row_products import ROWS

_NEAR = 16  # nodes


@dataclass(frozen=True, slots=True)
class GatherProducts:
    """Move products up to the one of the same rows that is not far before them.

    What is moved lives longer, so that nothing is moved far: layers that all read one
    tensor, as those of a decoder read its encoder's, would hold all their products.
    """

    name: ClassVar[str] = "gather-products"

    def run(self, program: Program) -> Program:
        """Return the program with such products side by side."""
        return each_method(program, _gather)


def _gather(method: Method) -> Method:
    made = {value.id for node in method.nodes for value in node.outputs}
    ends: dict[tuple[Argument, ...], int] = {}  # of rows, the last product's index
    groups: dict[int, list[Node]] = {}  # of nodes that stay, those that follow them
    heads: dict[tuple[Argument, ...], int] = {}
    for index, node in enumerate(method.nodes):
        rows = node.arguments[: ROWS.get(node.op, 0)]
        if not _may_move(node, made):
            groups[index] = [node]
        elif rows in heads and index - ends[rows] <= _NEAR:
            groups[heads[rows]].append(node)
            ends[rows] = index
        else:
            groups[index] = [node]
            heads[rows] = ends[rows] = index
    return replace(method, nodes=tuple(n for group in groups.values() for n in group))


def _may_move(node: Node, made: set[int]) -> bool:
    """Tell whether a node is a product whose weights are there from the beginning."""
    rows = ROWS.get(node.op)
    return rows is not None and not made & {v.id for v in node.inputs[rows:]}
