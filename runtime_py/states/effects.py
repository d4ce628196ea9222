"""Find the effects of a method on memory that persists after a call.

In: a method of a verified program. Out: how the method writes each state, the lengths
that growing states reach during a call, and the inputs that lie in the caller's own
arrays. The sizes of these effects are dims, which a call evaluates.
"""

from collections.abc import Iterator, Sequence

from kvc.runtime.states.kind import Write
from kvc.runtime.states.table import kind_of
from kvc.schema.frozen import frozen
from kvc.schema.graph import Access, Caller, StateSlot
from kvc.schema.model import Method, State
from kvc.schema.types import Dim


@frozen
class Growth:
    """The lengths of a state or array that a method extends or replaces.

    Attributes:
        axis: the axis that grows.
        length: the length after the call.
        reach: all lengths that the state or array has during the call; the memory must
            have room for the greatest.
    """

    axis: int
    length: Dim
    reach: tuple[Dim, ...]


@frozen
class Borrowed:
    """An input in the caller's own array.

    Attributes:
        input: the index of the input among the graph's inputs.
        value: the value id of the input.
        mutated: whether the method overwrites elements.
        growth: how the input's length changes, None if the length stays the same.
        outputs: the indices of the graph's outputs that return the input's newest
            value.
    """

    input: int
    value: int
    mutated: bool
    growth: Growth | None
    outputs: tuple[int, ...]


@frozen
class Effects:
    """The states and inputs that a method writes.

    Attributes:
        slots: the values that lie in the memory of growing states, as pairs (value id,
            state id).
        growth: the growth of states, by state id.
        writes: the writes of states, in order.
        borrowed: the inputs in the caller's arrays that the method writes.
    """

    slots: tuple[tuple[int, int], ...]
    growth: dict[int, Growth]
    writes: tuple[Write, ...]
    borrowed: tuple[Borrowed, ...]


def find_effects(method: Method, states: Sequence[State]) -> Effects:
    """Return the effects of a method."""
    values, by_root = method.graph.values, dict[int, list[Access]]()
    state_of = {
        i: value.storage.state
        for i, value in enumerate(values)
        if isinstance(value.storage, StateSlot)
    }
    writes, by_state = list[Write](), dict[int, list[Access]]()
    for update in method.updates:
        for access in update.accesses:
            by_root.setdefault(access.root, []).append(access)
            if access.root in state_of:
                state = state_of[access.root]
                by_state.setdefault(state, []).append(access)
                writes.append(Write(state, access, update.instruction))
    growths = {state: _growth(accesses) for state, accesses in by_state.items()}
    return Effects(
        slots=tuple(p for p in state_of.items() if kind_of(states[p[1]]).grows),
        growth={state: g for state, g in growths.items() if g is not None},
        writes=tuple(writes),
        borrowed=tuple(_borrowed(method, by_root)),
    )


def _growth(accesses: Sequence[Access]) -> Growth | None:
    lengths = [a for a in accesses if a.mode.lengthens]
    if not lengths:
        return None
    last = lengths[-1]
    assert last.axis is not None
    reach = tuple(a.size for a in lengths if a.size is not None)
    return Growth(last.axis, reach[-1], reach)


def _borrowed(method: Method, accesses: dict[int, list[Access]]) -> Iterator[Borrowed]:
    """Yield the inputs in the caller's arrays that the method writes."""
    graph, roots = method.graph, method.graph.roots()
    newest = {
        roots[v]: v
        for u in method.updates
        for v in graph.instructions[u.instruction].results
    }
    for index, value in enumerate(graph.inputs):
        if type(graph.values[value].storage) is Caller:
            own = accesses.get(value, [])
            mutated = any(not access.mode.lengthens for access in own)
            last = newest.get(value, value)
            outputs = tuple(i for i, v in enumerate(graph.outputs) if v == last)
            yield Borrowed(index, value, mutated, _growth(own), outputs)
