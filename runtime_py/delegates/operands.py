"""Check a block by its backend's list of what it supports."""

from collections.abc import Sequence

from kvc.schema.backends.operands import Operand, WhyNot
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref


def check_taken(graph: Graph, backend: str, why_not: WhyNot, where: str) -> None:
    """Check that a backend takes every instruction.

    Raises:
        BadProgram: for the first that it does not.
    """
    for index in _kinds_of_instructions(graph):
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


def _kinds_of_instructions(graph: Graph) -> Sequence[int]:
    """Return the index of the first instruction of each kind, ascending.

    What a backend says of an instruction by its op, the types of its operands and
    results, which operands are constants, and its other arguments, holds of all that
    are like it: a model has many equal layers.
    """
    marks = [
        (id(value.type), type(value.storage) is Constant) for value in graph.values
    ]
    first: dict[object, int] = {}
    for index, step in enumerate(graph.instructions):
        parts = [_mark(argument, marks) for argument in step.arguments]
        results = [marks[value] for value in step.results]
        first.setdefault((step.op, *parts, None, *results), index)
    return list(first.values())


def _mark(argument: Argument, marks: Sequence[object]) -> object:
    """Return what an argument is equal in, among instructions that are alike."""
    kind = type(argument)
    if kind is Ref:
        return marks[argument.value]  # type: ignore[union-attr]
    if kind is tuple:
        return tuple([_mark(item, marks) for item in argument])  # type: ignore[union-attr]
    return kind, argument  # since 1, 1.0 and True are equal
