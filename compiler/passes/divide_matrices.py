"""Make matrices of experts that lie in one matrix constants of their own.

A model may keep the matrices of its experts one after another, [experts * out, in],
and view them as [experts, out, in]. What stores weights in another form reads
constants. In: a program. Out: the same, where `kvc::expert_linear` reads such a view as
a constant of that shape, whose bytes are those of the whole matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.passes.weights import MethodBuilder, WeightBook

_VIEWS: Final = frozenset({"aten::view", "aten::reshape"})


@dataclass(frozen=True, slots=True)
class DivideMatrices:
    """Use constants where experts' matrices are views of one."""

    name: ClassVar[str] = "divide-matrices"

    def run(self, program: Program) -> Program:
        """Return the program with such matrices as constants."""
        book = WeightBook(program.constants, self.name)
        methods = tuple(_rewrite(method, book) for method in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)


def _rewrite(method: Method, book: WeightBook) -> Method:
    builder, makers = MethodBuilder(method), method.makers()
    nodes = tuple(_divided(node, makers, builder, book) for node in method.nodes)
    constants = (*method.constants, *builder.new_bindings)
    return replace(method, nodes=nodes, constants=constants)


def _divided(
    node: Node, makers: Mapping[int, Node], builder: MethodBuilder, book: WeightBook
) -> Node:
    if node.op != "kvc::expert_linear":
        return node
    x, weight, *others = node.arguments
    assert isinstance(weight, Value)
    view = makers.get(weight.id)
    if view is None or view.op not in _VIEWS:
        return node
    whole = view.inputs[0]
    name = builder.weight_name(whole)
    rows, columns = whole.type.dims if name is not None else (0, 0)
    if name is None or not rows or columns != weight.type.dims[2]:
        return node
    divided = builder.constant(book.divide(name, weight.type))
    return replace(node, arguments=(x, divided, *others))
