"""The arguments of a node as a backend's list of what it supports sees them."""

from kvc.compiler.ir import Argument, Node, Value
from kvc.schema.backends.operands import Operand


def operands_of(node: Node, constants: set[int]) -> list[object]:
    """Return a node's arguments, tensors as `Operand`s; `constants` are ids."""
    return [_operand(argument, constants) for argument in node.arguments]


def _operand(argument: Argument, constants: set[int]) -> object:
    if isinstance(argument, tuple):
        return tuple(_operand(item, constants) for item in argument)
    if isinstance(argument, Value):
        return Operand(argument.type, argument.id in constants)
    return argument
