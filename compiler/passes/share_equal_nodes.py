"""Compute equal things once: nodes of one op with equal arguments share a result.

All ops are functional and deterministic, so this holds for every node. With it, linear
layers with the same input share its quantization.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.rewrite import each_method, read_through


@dataclass(frozen=True, slots=True)
class ShareEqualNodes:
    """Keep the first of equal nodes."""

    name: ClassVar[str] = "share-equal-nodes"

    def run(self, program: Program) -> Program:
        """Return the program without repeated computations."""
        return each_method(program, _share)


def _share(method: Method) -> Method:
    first: dict[object, Node] = {}

    def equal(node: Node) -> Node | tuple[Value, ...]:
        types = tuple(value.type for value in node.outputs)
        key = (node.op, tuple(_exact(a) for a in node.arguments), types)
        found = first.setdefault(key, node)
        return node if found is node else found.outputs

    return read_through(method, equal)


def _exact(argument: Argument) -> object:
    """Return a key that tells 1, 1.0 and True apart."""
    if isinstance(argument, tuple):
        return tuple(_exact(item) for item in argument)
    return (type(argument), repr(argument) if isinstance(argument, float) else argument)
