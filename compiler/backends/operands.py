"""Choose nodes by a backend's list of what it supports."""

from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.schema.backends.operands import Operand, WhyNot


def able_nodes(method: Method, why_not: WhyNot) -> dict[int, Node]:
    """Return the nodes that a backend can run, by index."""
    constants = {value.id for value, _ in method.constants}
    able = {}
    for index, node in enumerate(method.nodes):
        results = [value.type for value in node.outputs]
        if not why_not(node.op, operands_of(node, constants), results):
            able[index] = node
    return able


def operands_of(node: Node, constants: set[int]) -> list[object]:
    """Return a node's arguments, tensors as `Operand`s; `constants` are ids."""
    return [_operand(argument, constants) for argument in node.arguments]


def _operand(argument: Argument, constants: set[int]) -> object:
    if isinstance(argument, tuple):
        return tuple(_operand(item, constants) for item in argument)
    if isinstance(argument, Value):
        return Operand(argument.type, argument.id in constants)
    return argument
