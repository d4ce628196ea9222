"""Which states a graph reads and writes; a method must declare exactly these."""

from collections.abc import Sequence

from kvc.schema.model import Alias, Argument, Graph, Instruction, Ref, StateSlot
from kvc.schema.ops import OPS, Aliasing


def state_effects(
    graph: Graph, operands: Sequence[Sequence[int]] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the states that a graph reads, and writes, each ascending.

    A write is an update in place of a state's memory or of a view of it. A read is
    any other use: as an output, or as an operand of anything but a view. Of updates
    in place only `aten::copy` does not read what it writes over, since it replaces
    all of it.

    Args:
        graph: the code.
        operands: ids that each instruction reads, where they are known already.
    """
    if operands is None:
        operands = [_values(step.arguments) for step in graph.instructions]
    owner = {
        i: value.storage.state
        for i, value in enumerate(graph.values)
        if type(value.storage) is StateSlot
    }
    reads: set[int] = set()
    writes: set[int] = set()
    for step, ids in zip(graph.instructions, operands, strict=True):
        if owner.keys().isdisjoint(ids):
            continue
        aliasing = OPS[step.op].aliasing
        in_place = _is_alias(graph, step) and ids[0] in owner
        if in_place:
            owner.update(dict.fromkeys(step.results, owner[ids[0]]))
        if aliasing is Aliasing.VIEW:
            continue
        if in_place:
            writes.add(owner[ids[0]])
        read = ids[1:] if in_place and step.op == "aten::copy" else ids
        reads.update(owner[value] for value in read if value in owner)
    reads.update(owner[value] for value in graph.outputs if value in owner)
    return tuple(sorted(reads)), tuple(sorted(writes))


def _is_alias(graph: Graph, step: Instruction) -> bool:
    return bool(step.results) and type(graph.values[step.results[0]].storage) is Alias


def _values(arguments: Sequence[Argument]) -> list[int]:
    ids: list[int] = []
    for argument in arguments:
        if type(argument) is Ref:
            ids.append(argument.value)
        elif type(argument) is tuple:
            ids += [item.value for item in argument if type(item) is Ref]
    return ids
