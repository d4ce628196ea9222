"""Rename values and rebuild methods, for several passes."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvc.compiler.ir import Argument, Method, Node, Program, Value, map_argument
from kvc.schema.types import TensorType


def each_method(program: Program, change: Callable[[Method], Method]) -> Program:
    """Return the program with `change` applied to each method."""
    return replace(program, methods=tuple(change(method) for method in program.methods))


def rename_node(node: Node, names: Mapping[int, Value]) -> Node:
    """Return a node with some operands replaced; `names` is value id -> new operand."""
    if not any(value.id in names for value in node.inputs):
        return node
    return replace(
        node,
        arguments=tuple(
            map_argument(a, lambda value: names.get(value.id, value))
            for a in node.arguments
        ),
    )


def rename_results(method: Method, names: Mapping[int, Value]) -> Method:
    """Return a method with some result values replaced, by id of the old value."""
    return replace(
        method,
        outputs=tuple(names.get(v.id, v) for v in method.outputs),
        state_out=tuple((names.get(v.id, v), name) for v, name in method.state_out),
        input_out=tuple((names.get(v.id, v), name) for v, name in method.input_out),
    )


def read_through(
    method: Method, stand_in: Callable[[Node], Node | tuple[Value, ...]]
) -> Method:
    """Remove nodes whose results equal other values, and let readers use those values.

    `stand_in` is called with each node in order, after the node's operands are renamed.
    It returns either the values that replace the node's results, or a node to keep,
    which is usually the same node.
    """
    names: dict[int, Value] = {}
    kept = []
    for node in method.nodes:
        found = stand_in(rename_node(node, names))
        if isinstance(found, Node):
            kept.append(found)
        else:
            names.update(zip((v.id for v in node.outputs), found, strict=True))
    return rename_results(replace(method, nodes=tuple(kept)), names)


class NodeList:
    """The nodes of a method while a pass rebuilds it; `makers` is value id -> node."""

    def __init__(self, method: Method) -> None:
        self.nodes: list[Node] = []
        self.makers: dict[int, Node] = {}
        self._count = method.next_id()

    def keep(self, node: Node) -> None:
        """Add a node without changing its output values."""
        self.nodes.append(node)
        self.makers.update((value.id, node) for value in node.outputs)

    def value(self, kind: TensorType) -> Value:
        """Return a value with a new id and the type `kind`."""
        self._count += 1
        return Value(self._count - 1, kind)

    def add(
        self, op: str, arguments: tuple[Argument, ...], kind: TensorType, source: str
    ) -> Value:
        """Add a node with one result; return the result."""
        result = self.value(kind)
        self.keep(Node(op, arguments, (result,), source))
        return result
