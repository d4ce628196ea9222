"""Find the writes of instructions to states and to inputs in the memory of a caller.

In: a graph and the blocks that its instructions run. Out: an `Access` for each result
that lies in a state or in such an input. The `Access` tells a session what is written,
so that the session need not know the operator. An instruction that runs blocks has the
accesses of these blocks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvc.schema.control import read_control
from kvc.schema.graph import (
    Access,
    AccessMode,
    Alias,
    Caller,
    Graph,
    Instruction,
    Ref,
    StateSlot,
)
from kvc.schema.model import Block, Update
from kvc.schema.ops import APPEND, CACHE_UPDATE, CONTROL_OPS, OPS, REPLACE, Aliasing
from kvc.schema.types import Dim

Blocks = Sequence[Block] | Mapping[int, Block]  # by number
_MODES: Final = {
    APPEND: AccessMode.APPEND,
    REPLACE: AccessMode.REPLACE,
    CACHE_UPDATE: AccessMode.SLOTS,
}
_AXIS: Final = {AccessMode.SLOTS: 3, AccessMode.APPEND: 2, AccessMode.REPLACE: 2}


def accesses_of(
    graph: Graph, index: int, blocks: Blocks, roots: Sequence[int]
) -> tuple[Access, ...]:
    """Return the accesses of an instruction, or of the blocks that it runs.

    Args:
        graph: the graph that holds the instruction.
        index: the index of the instruction in the graph.
        blocks: the blocks of the method.
        roots: for each value of the graph, the value that owns its memory.
    """
    step, found = graph.instructions[index], list[Access]()
    if OPS[step.op].aliasing is Aliasing.VIEW:
        return ()
    for result in step.results:
        if type(graph.values[result].storage) is Alias:
            root = roots[result]
            if type(graph.values[root].storage) in (StateSlot, Caller):
                found += _written(graph, step, result, root, blocks)
    return tuple(dict.fromkeys(reversed(found)))[::-1]


def with_accesses(
    graph: Graph, updates: Sequence[Update], blocks: Blocks
) -> tuple[Update, ...]:
    """Return the updates of a graph, with the accesses of each update's instruction."""
    roots = graph.roots()
    return tuple(
        replace(u, accesses=accesses_of(graph, u.instruction, blocks, roots))
        for u in updates
    )


def _written(
    graph: Graph, step: Instruction, result: int, root: int, blocks: Blocks
) -> Iterator[Access]:
    dims = graph.values[result].type.dims
    if step.op not in CONTROL_OPS:
        yield _access(graph, step, root, dims)
        return
    control = read_control(step.op, step.arguments)
    operand = control.over[step.results.index(result)]
    assert operand is not None
    for number in control.blocks:
        inside = blocks[number]
        lent = inside.graph.inputs[operand]
        for access in (a for u in inside.updates for a in u.accesses if a.root == lent):
            yield replace(access, root=root)
            if access.mode.lengthens:
                yield replace(access, root=root, size=dims[access.axis or 0])


def _access(graph: Graph, step: Instruction, root: int, dims: Sequence[Dim]) -> Access:
    """Return the access of an operator to the memory that its result lies in.

    Args:
        graph: the graph of the operator.
        step: the instruction of the operator; its first operand lies in the memory too.
        root: the value that owns the memory.
        dims: the dims of the result.
    """
    mode = _MODES.get(step.op, AccessMode.ANYWHERE)
    if mode is AccessMode.ANYWHERE:
        return Access(root, mode)
    axis, update = step.arguments[_AXIS[mode]], step.arguments[1]
    assert isinstance(axis, int)
    axis %= len(dims)
    if not mode.lengthens:
        assert isinstance(update, Ref)
        dims = graph.values[update.value].type.dims
    return Access(root, mode, axis, dims[axis])
