"""Find instructions that are alike, so that what one shows need not be asked again.

A model has many equal layers. What holds of an instruction by its op, the types of its
operands and results, which operands are constants, and its other arguments, holds of
all that are like it.
"""

from collections.abc import Sequence

from kvc.schema.model import Argument, Constant, Graph, Ref


def kinds_of_instructions(graph: Graph) -> Sequence[int]:
    """Return the index of the first instruction of each kind, ascending."""
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
