"""The arguments of an instruction as a backend's list of what it supports sees them."""

from kvc.schema.backends.operands import Operand
from kvc.schema.model import Argument, Constant, Graph, Instruction, Ref


def operands_of(graph: Graph, instruction: Instruction) -> list[object]:
    """Return an instruction's arguments, tensors as `Operand`s."""
    return [_operand(graph, argument) for argument in instruction.arguments]


def _operand(graph: Graph, argument: Argument) -> object:
    if isinstance(argument, tuple):
        return tuple(_operand(graph, item) for item in argument)
    if not isinstance(argument, Ref):
        return argument
    value = graph.values[argument.value]
    return Operand(value.type, isinstance(value.storage, Constant))
