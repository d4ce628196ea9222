"""Check that a backend supports a partition's code; evaluate symbolic arguments."""

from collections.abc import Mapping, Sequence

from kvc.schema.backends.operands import WhyNot, arguments_of
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Alias, Argument, Constant, Graph, Ref, Scratch
from kvc.schema.model import Block, Delegate, Program
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Affine


def where_of(program: Program, partition: Delegate) -> str:
    """Return words that say which partition of which method it is, for errors."""
    return f"a delegate of method {program.methods[partition.method].name!r}"


def refuse_payload(program: Program, path: str, partition: Delegate) -> None:
    """Check that a partition has no payload.

    Raises:
        BadProgram: the partition has a payload.
    """
    if partition.payload:
        nbytes, backend = len(partition.payload), partition.backend
        what = f"a payload of {nbytes} bytes, where {backend} has none"
        raise BadProgram(path=path, where=where_of(program, partition), what=what)


def taken_block(
    program: Program,
    path: str,
    partition: Delegate,
    why_not: WhyNot,
    *,
    over_operands: bool = False,
) -> Block:
    """Return the block of a partition, after checking that the backend supports it.

    Args:
        program: the program.
        path: path of the bundle, for messages.
        partition: the partition.
        why_not: the backend's support list.
        over_operands: whether the backend writes pointwise results over operands in
            scratch memory.

    Raises:
        BadProgram: the backend does not support an instruction, or where its result
            lies; the error names the first such instruction.
    """
    block = program.methods[partition.method].blocks[partition.block]
    where = f"{path}: {where_of(program, partition)}"
    check_taken(block.graph, partition.backend, why_not, where)
    if not over_operands:
        check_apart(block.graph, partition.backend, where)
    return block


def check_taken(graph: Graph, backend: str, why_not: WhyNot, where: str) -> None:
    """Check that a backend supports every instruction of a graph.

    Raises:
        BadProgram: the backend does not support an instruction; the error names the
            first unsupported instruction.
    """
    for index in _kinds_of_instructions(graph):
        instruction = graph.instructions[index]
        results = [graph.values[value].type for value in instruction.results]
        reason = why_not(instruction.op, arguments_of(graph, instruction), results)
        if reason:
            what = f"the backend {backend} does not take {instruction.op}: {reason}"
            raise BadProgram(path=where, where=f"instruction {index}", what=what)


def check_apart(graph: Graph, backend: str, where: str) -> None:
    """Check that no result of an instruction is written over scratch memory.

    Updates may be.

    Raises:
        BadProgram: a result is; the error names the first such instruction.
    """
    values, roots = graph.values, graph.roots()
    for index, instruction in enumerate(graph.instructions):
        if OPS[instruction.op].aliasing is not Aliasing.FRESH:
            continue
        for value in instruction.results:
            over = isinstance(values[value].storage, Alias)
            if over and isinstance(values[roots[value]].storage, Scratch):
                what = f"{backend} does not write {instruction.op} over its operand"
                raise BadProgram(path=where, where=f"instruction {index}", what=what)


def settled(argument: Argument, sizes: Mapping[str, int]) -> object:
    """Return an argument with symbolic sizes evaluated; tensors stay references."""
    match argument:
        case tuple():
            return tuple(settled(item, sizes) for item in argument)
        case Affine():
            return argument.evaluate(sizes)
        case _:
            return argument


def _kinds_of_instructions(graph: Graph) -> Sequence[int]:
    """Return the index of the first instruction of each kind, ascending.

    A backend's support list judges an instruction by its operator, the types of its
    operands and results, which operands are constants, and its other arguments.
    Instructions that agree in all of these are of one kind, and get the same verdict. A
    model has many equal layers, so it has few kinds.
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
    """Return a key for an argument; instructions of one kind have equal keys."""
    kind = type(argument)
    if kind is Ref:
        return marks[argument.value]  # type: ignore[union-attr]
    if kind is tuple:
        return tuple([_mark(item, marks) for item in argument])  # type: ignore[union-attr]
    return kind, argument  # since 1, 1.0 and True are equal
