"""What kind of state each is: how it is written, and whether at the cursor.

In: the proven program and what counts its tokens. Out: its states, with what they are.
A state is LINEAR or RING when every write to it is a `cache_update` of that mode on one
axis, APPEND when it grows, COUNTER when every method advances it as the position, and
PLAIN otherwise. It is at the cursor when every write begins there and is as long as
what its method adds to it. How far back a ring is seen is found by `rings.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvc.compiler.analysis.advances import counts_rows_as
from kvc.compiler.analysis.cursors import (
    Counting,
    position_values,
    start_of,
)
from kvc.compiler.analysis.growth import growth, keeps_old_rows
from kvc.compiler.analysis.rings import find_windows
from kvc.compiler.analysis.updates import (
    CACHE_UPDATE,
    CacheWrite,
    cache_write,
    state_writes,
)
from kvc.compiler.ir import Method, Node, Program, State
from kvc.schema import model
from kvc.schema.rings import Window

Kind = model.StateKind
_KINDS = {"linear": Kind.LINEAR, "circular": Kind.RING}
_Written = tuple[Method, Node]


def describe_states(
    program: Program, countings: Sequence[Counting]
) -> tuple[State, ...]:
    """Return the states with what they are."""
    writes: dict[str, list[_Written]] = {state.name: [] for state in program.states}
    for method in program.methods:
        for name, node in state_writes(method):
            writes[name].append((method, node))
    states = {s.name: _describe(s, writes[s.name], countings) for s in program.states}
    for number, counting in enumerate(countings):
        placed = {
            method.name: frozenset(_position_values(method, program, counting))
            for method in program.methods
        }
        for name, state in states.items():
            written = writes[name]
            if state.cursor is None and _is_at(
                state, written, program, counting, placed
            ):
                states[name] = replace(state, cursor=number)
        rings = {
            state.name: state.axis
            for state in states.values()
            if state.kind is Kind.RING
            and state.cursor == number
            and state.axis is not None
        }
        windows = find_windows(program, counting, rings) if rings else {}
        for name, window in windows.items():
            states[name] = replace(states[name], window=Window(window))
    return tuple(states.values())


def _position_values(method: Method, program: Program, counting: Counting) -> set[int]:
    """Return the ids of a method's values that are the position as it starts."""
    start = start_of(method, counting.position, program)
    return set() if start is None else position_values(method, start)


def _describe(
    state: State, writes: Sequence[_Written], countings: Sequence[Counting]
) -> State:
    for number, counting in enumerate(countings):
        if state.name in counting.counters:
            return replace(state, kind=Kind.COUNTER, cursor=number)
    kind, axis = _kind(state, [node for _, node in writes])
    return replace(state, kind=kind, axis=axis)


def _is_at(
    state: State,
    writes: Sequence[_Written],
    program: Program,
    counting: Counting,
    placed: Mapping[str, frozenset[int]],
) -> bool:
    """Tell whether every write of a state begins at a cursor."""
    if state.kind is Kind.APPEND:
        return _grows_at_position(state, program, counting)
    return state.kind in (Kind.LINEAR, Kind.RING) and all(
        _is_at_position(cache_write(state.name, node), method, counting, placed)
        for method, node in writes
    )


def _kind(state: State, writes: Sequence[Node]) -> tuple[Kind, int | None]:
    if state.grows is not None:
        return Kind.APPEND, state.grows
    if not writes or any(not _is_cache_update(node, state) for node in writes):
        return Kind.PLAIN, None
    found = [cache_write(state.name, node) for node in writes]
    manners = {(_KINDS[write.mode], write.axis) for write in found}
    return manners.pop() if len(manners) == 1 else (Kind.PLAIN, None)


def _is_cache_update(node: Node, state: State) -> bool:
    """Tell whether a node updates a state as a cache, and not a view of it."""
    return node.op == CACHE_UPDATE and node.inputs[0].type == state.type


def _grows_at_position(state: State, program: Program, counting: Counting) -> bool:
    """Tell whether a state is as long as the position after each method.

    It is when each method lengthens it by what it adds to the position, or when the
    position is the common length of all that grows.
    """
    position = counting.position
    if not all(keeps_old_rows(method, state) for method in program.methods):
        return False
    if position.kind is model.CursorKind.LENGTH:
        return state.name in counting.lengths
    number = position.state
    return (
        (number is None or program.states[number].initial is None)
        and not counting.row_lengths
        and all(
            growth(method, state) == counting.advances.get(method.name, 0)
            for method in program.methods
        )
    )


def _is_at_position(
    write: CacheWrite,
    method: Method,
    counting: Counting,
    placed: Mapping[str, frozenset[int]],
) -> bool:
    """Tell whether a write begins at the position and is as long as its advance."""
    if write.index is None or write.index.id not in placed[method.name]:
        return False
    same = counts_rows_as(method, write.counted, counting.row_lengths.get(method.name))
    return same and counting.advances.get(method.name) == write.count
