"""Check a block by its backend's list of what it supports."""

from kvc.schema.alike import kinds_of_instructions
from kvc.schema.backends.operands import Operand, WhyNot
from kvc.schema.errors import BadProgram
from kvc.schema.model import Argument, Constant, Graph, Instruction, Ref


def check_taken(graph: Graph, backend: str, why_not: WhyNot, where: str) -> None:
    """Check that a backend takes every instruction.

    Raises:
        BadProgram: for the first that it does not.
    """
    for index in kinds_of_instructions(graph):
        instruction = graph.instructions[index]
        results = [graph.values[value].type for value in instruction.results]
        reason = why_not(instruction.op, operands_of(graph, instruction), results)
        if reason:
            what = f"the backend {backend} does not take {instruction.op}: {reason}"
            raise BadProgram(path=where, where=f"instruction {index}", what=what)


def operands_of(graph: Graph, instruction: Instruction) -> list[object]:
    """Return an instruction's arguments as the list sees them."""
    return [_operand(graph, argument) for argument in instruction.arguments]


def _operand(graph: Graph, argument: Argument) -> object:
    if isinstance(argument, tuple):
        return tuple(_operand(graph, item) for item in argument)
    if not isinstance(argument, Ref):
        return argument
    value = graph.values[argument.value]
    return Operand(value.type, isinstance(value.storage, Constant))
