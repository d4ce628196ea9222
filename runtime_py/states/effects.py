"""What a method does to memory that outlives its call, read off its graph.

In: a method of a verified program. Out: how it writes which states, how far each that
grows gets, and which inputs lie in the caller's own arrays. All of it is known before
any call; sizes are put in at each one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvc.runtime.states.access import Access, Mode
from kvc.runtime.states.table import kind_of
from kvc.schema.control import read_control
from kvc.schema.model import (
    Alias,
    Caller,
    Graph,
    Instruction,
    Method,
    Ref,
    State,
    StateSlot,
)
from kvc.schema.ops import CONTROL_OPS, OPS, Aliasing
from kvc.schema.types import Dim

APPEND, REPLACE, CACHE_UPDATE = "kvc::append", "kvc::replace", "kvc::cache_update"
_MODES: Final = {
    APPEND: Mode.APPEND,
    REPLACE: Mode.REPLACE,
    CACHE_UPDATE: Mode.AT_CURSOR,
}


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that a method makes longer or shorter.

    Attributes:
        axis: along which.
        length: of the newest value.
        reach: lengths of all values over it on the way; the longest counts.
    """

    axis: int
    length: Dim
    reach: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An input in the caller's own array.

    Attributes:
        input: index among the graph's inputs.
        value: its id.
        mutated: whether elements of it are written over.
        growth: how it grows, None when it does not.
        outputs: indices of the graph's outputs that are its newest value.
    """

    input: int
    value: int
    mutated: bool
    growth: Growth | None
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Effects:
    """What a method writes beside its scratch memory and results.

    Attributes:
        slots: values that are a state which grows, and that state: (value, state).
        growth: of states, by state id.
        accesses: writes of states, in order.
        borrowed: inputs in the caller's arrays.
    """

    slots: tuple[tuple[int, int], ...]
    growth: dict[int, Growth]
    accesses: tuple[Access, ...]
    borrowed: tuple[Borrowed, ...]


def find_effects(method: Method, states: Sequence[State]) -> Effects:
    """Return the effects of a method."""
    return _Finder(method, states).find()


@dataclass(frozen=True, slots=True)
class BlockWrite:
    """An instruction that writes, and the graph that it is in: of a method or block."""

    graph: Graph
    step: Instruction


def writes_of(method: Method, index: int, result: int) -> Iterator[BlockWrite]:
    """Yield what writes when an instruction makes a result over older memory.

    It may be the instruction itself, or any number of those in the blocks it runs.
    """
    yield from _writes_of(
        method, method.graph, method.graph.instructions[index], result
    )


def _writes_of(
    method: Method, graph: Graph, step: Instruction, result: int
) -> Iterator[BlockWrite]:
    if step.op not in CONTROL_OPS:
        yield BlockWrite(graph, step)
        return
    control = read_control(step.op, step.arguments)
    operand = control.over[step.results.index(result)]
    assert operand is not None, "the verifier sees to it"
    for number in control.blocks:
        inside = method.blocks[number].graph
        root = inside.inputs[operand]
        for inner in inside.instructions:
            if OPS[inner.op].aliasing is Aliasing.VIEW:
                continue
            for value in inner.results:
                aliased = type(inside.values[value].storage) is Alias
                if aliased and inside.root_of(value) == root:
                    yield from _writes_of(method, inside, inner, value)


@dataclass(slots=True)
class _Writes:
    """Writes over one root, as they are found."""

    newest: int
    mutated: bool = False
    axis: int = 0
    lengths: list[Dim] = field(default_factory=list)

    def growth(self) -> Growth | None:
        if not self.lengths:
            return None
        return Growth(self.axis, self.lengths[-1], tuple(self.lengths))


class _Finder:
    """The effects of one graph while they are gathered."""

    def __init__(self, method: Method, states: Sequence[State]) -> None:
        self._graph, self._states = method.graph, states
        self._method = method
        self._writes: dict[int, _Writes] = {}
        self._state_growth: dict[int, _Writes] = {}
        self._accesses: list[Access] = []

    def find(self) -> Effects:
        for index, result, root in self._updates():
            storage = self._graph.values[root].storage
            writes = self._writes.setdefault(root, _Writes(root))
            if isinstance(storage, StateSlot):
                writes = self._state_growth.setdefault(storage.state, writes)
            for write in writes_of(self._method, index, result):
                if isinstance(storage, StateSlot):
                    self._accesses.append(_access(storage.state, index, write))
                self._add(writes, write)
            writes.newest = result
            if writes.lengths:
                dims = self._graph.values[result].type.dims
                writes.lengths.append(dims[writes.axis])
        return Effects(
            slots=tuple(self._slots()),
            growth=self._growth(),
            accesses=tuple(self._accesses),
            borrowed=tuple(self._borrowed()),
        )

    def _updates(self) -> Iterator[tuple[int, int, int]]:
        """Yield each result over a state or a caller's input, and that root value."""
        values = self._graph.values
        for index, step in enumerate(self._graph.instructions):
            if OPS[step.op].aliasing is Aliasing.VIEW:
                continue
            for result in step.results:
                if type(values[result].storage) is Alias:
                    root = self._graph.root_of(result)
                    if type(values[root].storage) in (StateSlot, Caller):
                        yield index, result, root

    def _add(self, writes: _Writes, write: BlockWrite) -> None:
        if write.step.op not in (APPEND, REPLACE):
            writes.mutated = True
            return
        dims = write.graph.values[write.step.results[0]].type.dims
        writes.axis = _axis(write.step, len(dims))
        writes.lengths.append(dims[writes.axis])

    def _slots(self) -> Iterator[tuple[int, int]]:
        grow = [kind_of(state).grows for state in self._states]
        for value, declared in enumerate(self._graph.values):
            storage = declared.storage
            if type(storage) is StateSlot and grow[storage.state]:
                yield value, storage.state

    def _growth(self) -> dict[int, Growth]:
        found = {s: writes.growth() for s, writes in self._state_growth.items()}
        return {state: growth for state, growth in found.items() if growth is not None}

    def _borrowed(self) -> Iterator[Borrowed]:
        graph = self._graph
        for index, value in enumerate(graph.inputs):
            if type(graph.values[value].storage) is not Caller:
                continue
            writes = self._writes.get(value, _Writes(value))
            newest = enumerate(graph.outputs)
            outputs = tuple(i for i, output in newest if output == writes.newest)
            yield Borrowed(index, value, writes.mutated, writes.growth(), outputs)


def _access(state: int, instruction: int, write: BlockWrite) -> Access:
    """Return what one write does to a state."""
    step = write.step
    mode = _MODES.get(step.op, Mode.ANYWHERE)
    if step.op != CACHE_UPDATE:
        return Access(state, mode, instruction, None)
    update = step.arguments[1]
    assert isinstance(update, Ref)
    dims = write.graph.values[update.value].type.dims
    return Access(state, mode, instruction, dims[_axis(step, len(dims))])


def _axis(step: Instruction, rank: int) -> int:
    """Return the argument `axis` of an append, replacement or write of rows."""
    position = 3 if step.op == CACHE_UPDATE else 2
    axis = step.arguments[position]
    assert isinstance(axis, int)
    return axis % rank
