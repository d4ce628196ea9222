"""Find a graph's reads and writes of memory that outlives a call.

Such memory is states and callers' arrays. In: a graph. Out: the states that the graph
reads and writes, which a method must declare; and the instructions that write to states
or callers' arrays. The program must contain a verdict for each of these instructions.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kvc.schema.frozen import frozen
from kvc.schema.graph import (
    Alias,
    Argument,
    Caller,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
)
from kvc.schema.ops import OPS, Aliasing

CALLER: Final = -1  # id of a caller's array among the ids of states
# These overwrite their whole operand, and so do not read it.
_BLIND: Final = frozenset({"aten::copy", "kvc::replace"})


@frozen
class Effects:
    """The reads and writes of a graph to states and callers' arrays.

    Attributes:
        reads, writes: ids of the states that the graph reads or writes, ascending.
        updates: indices of the instructions that write to a state or a caller's array,
            ascending.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    updates: tuple[int, ...]


def effects(graph: Graph, operands: Sequence[Sequence[int]] | None = None) -> Effects:
    """Return a graph's reads and writes of states and callers' arrays.

    A write is a result that is not a view and shares memory with a state, or with an
    input in the caller's array. A read is a use of such memory as an output, or as an
    operand of an instruction that is not a view. An operand that is wholly overwritten
    is not read.

    Args:
        graph: the graph to examine.
        operands: for each instruction, the ids of the values that it reads; None to
            collect them from the graph.
    """
    if operands is None:
        operands = [values_in(step.arguments) for step in graph.instructions]
    owner, bases = _owners(graph)
    reads: set[int] = set()
    writes: set[int] = set()
    updates: list[int] = []
    for index, (step, ids) in enumerate(zip(graph.instructions, operands, strict=True)):
        if owner.keys().isdisjoint(ids) and bases.keys().isdisjoint(step.results):
            continue
        written = _follow(step, owner, bases)
        if OPS[step.op].aliasing is Aliasing.VIEW:
            continue
        if written:
            updates.append(index)
            writes.update(written)
        read = ids[1:] if written and step.op in _BLIND else ids
        reads.update(owner[value] for value in read if value in owner)
    reads.update(owner[value] for value in graph.outputs if value in owner)
    return Effects(_states(reads), _states(writes), tuple(updates))


def _states(owners: set[int]) -> tuple[int, ...]:
    return tuple(sorted(owners - {CALLER}))


def _owners(graph: Graph) -> tuple[dict[int, int], Mapping[int, int]]:
    """Return where the values of a graph that are not scratch memory lie.

    Returns:
        For each value that is a state, the state's id; for each input in the caller's
        array, `CALLER`. Then, for each alias, the value whose memory it shares.
    """
    owner: dict[int, int] = {}
    bases: dict[int, int] = {}
    for i, value in enumerate(graph.values):
        storage = value.storage
        if isinstance(storage, Scratch):
            continue
        if isinstance(storage, Alias):
            bases[i] = storage.base
        elif isinstance(storage, StateSlot):
            owner[i] = storage.state
        elif isinstance(storage, Caller):
            owner[i] = CALLER
    return owner, bases


def _follow(
    step: Instruction, owner: dict[int, int], bases: Mapping[int, int]
) -> list[int]:
    """Record which states or callers' arrays results lie in; return these owners."""
    found = []
    for result in step.results:
        base = bases.get(result)
        if base is not None and base in owner:
            owner[result] = owner[base]
            found.append(owner[base])
    return found


def values_in(arguments: Sequence[Argument]) -> list[int]:
    """Return the ids of the values among an instruction's arguments, in order."""
    ids: list[int] = []
    for argument in arguments:
        if type(argument) is Ref:
            ids.append(argument.value)
        elif type(argument) is tuple:
            ids += [item.value for item in argument if type(item) is Ref]
    return ids
