"""Compute equal things once: nodes of one op with equal arguments share a result.

All ops are functional and deterministic, so this holds for every node. With it, linear
layers with the same input share its quantization.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Argument, Method, Program, Value
from kvc.compiler.passes.rewrite import each_method, rename_node, rename_results


@dataclass(frozen=True, slots=True)
class ShareEqualNodes:
    """Keep the first of equal nodes."""

    name: ClassVar[str] = "share-equal-nodes"

    def run(self, program: Program) -> Program:
        """Return the program without repeated computations."""
        return each_method(program, _share)


def _share(method: Method) -> Method:
    names: dict[int, Value] = {}
    first: dict[object, tuple[Value, ...]] = {}
    kept = []
    for node in method.nodes:
        node = rename_node(node, names)
        types = tuple(value.type for value in node.outputs)
        key = (node.op, tuple(_exact(a) for a in node.arguments), types)
        if key in first:
            olds = (value.id for value in node.outputs)
            names.update(zip(olds, first[key], strict=True))
        else:
            first[key] = node.outputs
            kept.append(node)
    return rename_results(replace(method, nodes=tuple(kept)), names)


def _exact(argument: Argument) -> object:
    """Return a key that tells 1, 1.0 and True apart."""
    if isinstance(argument, tuple):
        return tuple(_exact(item) for item in argument)
    return (type(argument), repr(argument) if isinstance(argument, float) else argument)
