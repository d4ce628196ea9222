"""What a method does to memory that outlives its call, as its file says it.

In: a method of a verified program. Out: how it writes which states, how far each that
grows gets, and which inputs lie in the caller's own arrays. All of it is known before
any call, except sizes.
"""

from collections.abc import Iterator, Sequence

from kvc.runtime.states.kind import Write
from kvc.runtime.states.table import kind_of
from kvc.schema.frozen import frozen
from kvc.schema.graph import Caller, StateSlot
from kvc.schema.model import Access, Method, State
from kvc.schema.types import Dim


@frozen
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


@frozen
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


@frozen
class Effects:
    """What a method writes beside its scratch memory and results.

    Attributes:
        slots: values that are a state which grows, and that state: (value, state).
        growth: of states, by state id.
        writes: of states, in order.
        borrowed: inputs in the caller's arrays.
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
    """Yield the inputs in the caller's arrays."""
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
