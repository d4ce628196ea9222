"""Find the kind of each state: how it is written, and whether at the cursor.

In: flat methods and what counts their tokens. Out: the states, with their kinds. A
state is LINEAR or RING if every write to it is a `cache_update` of that mode on one
axis, APPEND if it grows, COUNTER if every method advances it as the position, and PLAIN
otherwise. It is at the cursor if every write is to positions that its method adds to
the cursor. `windows.py` finds how far back a ring is seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvc.compiler.analysis.cursor_fields import CursorView
from kvc.compiler.analysis.cursors import Counting
from kvc.compiler.analysis.flat import FlatMethod
from kvc.compiler.analysis.growth import growth, keeps_old_rows
from kvc.compiler.analysis.updates import (
    Held,
    cache_write,
    find_held,
)
from kvc.compiler.analysis.windows import find_windows
from kvc.compiler.ir import Node, Program, State
from kvc.schema.model import CursorKind, StateKind
from kvc.schema.ops import CACHE_UPDATE

_KINDS = {"linear": StateKind.LINEAR, "circular": StateKind.RING}
_Written = tuple[FlatMethod, Node]


def describe_states(
    program: Program, methods: Sequence[FlatMethod], countings: Sequence[Counting]
) -> tuple[State, ...]:
    """Return the states with what they are."""
    writes: dict[str, list[_Written]] = {state.name: [] for state in program.states}
    for method in methods:
        for name, node in method.writes:
            writes[name].append((method, node))
    held = {method.name: find_held(method) for method in methods}
    states = {s.name: _with_kind(s, writes[s.name], held) for s in program.states}
    for number, counting in enumerate(countings):
        views = {m.name: counting.view(m, program) for m in methods}
        for name, state in states.items():
            if state.cursor is not None:
                continue
            if name in counting.states and state.grows is None:
                kind = StateKind.COUNTER
                states[name] = replace(state, kind=kind, axis=None, cursor=number)
            elif _is_at(state, writes[name], program, counting, views):
                states[name] = replace(state, cursor=number)
        rings = {
            name: state
            for name, state in states.items()
            if state.kind is StateKind.RING and state.cursor == number
        }
        for name, window in find_windows(program, views.values(), rings).items():
            states[name] = replace(states[name], window=window)
    return tuple(states.values())


def _with_kind(
    state: State,
    writes: Sequence[_Written],
    held: Mapping[str, Mapping[int, Held]],
) -> State:
    if state.grows is not None:
        return replace(state, kind=StateKind.APPEND, axis=state.grows)
    if not all(_updates_whole(state, node, held[m.name]) for m, node in writes):
        return state
    found = [cache_write(state.name, node, method) for method, node in writes]
    manners = {(_KINDS[write.mode], write.axis) for write in found}
    if len(manners) != 1:
        return state
    kind, axis = manners.pop()
    return replace(state, kind=kind, axis=axis)


def _updates_whole(state: State, node: Node, held: Mapping[int, Held]) -> bool:
    """Tell whether a node updates a state as a cache, and not a view of it."""
    if node.op != CACHE_UPDATE or node.inputs[0].type != state.type:
        return False
    one = held.get(node.inputs[0].id)
    return one is None or one.whole


def _is_at(
    state: State,
    writes: Sequence[_Written],
    program: Program,
    counting: Counting,
    views: Mapping[str, CursorView],
) -> bool:
    """Tell whether all writes of a state are of what their methods add to a cursor."""
    if state.kind is StateKind.APPEND:
        return _grows_at(state, program, counting, views)
    symbols = {symbol.name: symbol for symbol in program.symbols}
    return state.kind in _KINDS.values() and all(
        views[method.name].covers(cache_write(state.name, node, method), symbols)
        for method, node in writes
    )


def _grows_at(
    state: State,
    program: Program,
    counting: Counting,
    views: Mapping[str, CursorView],
) -> bool:
    """Tell whether a state is as long as the position after each method.

    It is when each method lengthens it by what it adds to the position, or when the
    position is the common length of all that grows.
    """
    if not all(keeps_old_rows(view.method, state) for view in views.values()):
        return False
    if counting.cursor.kind is CursorKind.LENGTH:
        return state.name in counting.states
    counter = counting.cursor.state
    from_zero = counter is None or program.states[counter].initial is None
    return from_zero and all(
        view.step.lengths is None
        and not view.step.totals
        and growth(view.method, state) == (view.step.tokens or 0)
        for view in views.values()
    )
