"""Record kinds of states and cursors in the IR, before any backend.

In: the program after the passes. Out: the same program, with kinds, cursors and windows
recorded on the states and methods, and with cursor values in place of equivalent index
arithmetic. Later stages read the recorded kind of a state and do not look at operators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvc.compiler.analysis.cursor_fields import CursorView, with_places
from kvc.compiler.analysis.cursor_values import use_cursors
from kvc.compiler.analysis.cursors import Counting, find_countings, find_places
from kvc.compiler.analysis.flat import FlatMethod, flatten
from kvc.compiler.analysis.updates import (
    InState,
    cache_write,
    find_held,
    growth,
    keeps_old_rows,
)
from kvc.compiler.analysis.windows import find_windows
from kvc.compiler.ir import Method, Node, Program, State
from kvc.compiler.place import prove_all
from kvc.schema.errors import CompileError
from kvc.schema.model import CursorKind, StateKind
from kvc.schema.ops import CACHE_UPDATE

# Find the kind of each state: how methods write it, and whether at the cursor.


_KINDS = {"linear": StateKind.LINEAR, "circular": StateKind.RING}
_Written = tuple[FlatMethod, Node]


def describe_states(
    program: Program, methods: Sequence[FlatMethod], countings: Sequence[Counting]
) -> tuple[State, ...]:
    """Return the states with their kinds, cursors and windows recorded."""
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
    held: Mapping[str, Mapping[int, InState]],
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


def _updates_whole(state: State, node: Node, held: Mapping[int, InState]) -> bool:
    """Tell whether a node is a cache update of a whole state, not of a view."""
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
    """Tell whether a state is written at the positions that a cursor counts.

    Every write must cover only tokens that the call adds. A growing state must be as
    long as the cursor's position after each method.
    """
    if state.kind is StateKind.APPEND:
        # Whether a state is as long as the position after each method. It is if each
        # method lengthens it by the tokens that it adds to the position, or if the
        # position is the common length of all growing states.
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
    symbols = {symbol.name: symbol for symbol in program.symbols}
    return state.kind in _KINDS.values() and all(
        views[method.name].covers(cache_write(state.name, node, method), symbols)
        for method, node in writes
    )


# Declare states and cursors.


def declare(program: Program) -> Program:
    """Return the program with the kinds of states and the cursors recorded.

    Raises:
        CompileError: a method's use of its position is ambiguous.
    """
    proofs = prove_all(program)
    methods = tuple(proofs[method.name].method for method in program.methods)
    flat = _with_places(program, flatten(replace(program, methods=methods)))
    countings = find_countings(program, flat)
    program = replace(
        program,
        states=describe_states(program, flat, countings),
        cursors=tuple(counting.cursor for counting in countings),
        methods=tuple(_declared(method, countings) for method in program.methods),
    )
    views = {
        method.name: tuple(counting.view(method, program) for counting in countings)
        for method in flat
    }
    return use_cursors(program, views)


def _with_places(
    program: Program, methods: Sequence[FlatMethod]
) -> tuple[FlatMethod, ...]:
    places = find_places(program, methods)
    return tuple(with_places(m) if m.name in places else m for m in methods)


def _declared(method: Method, countings: Sequence[Counting]) -> Method:
    found = []
    for number, counting in enumerate(countings):
        step = counting.steps.get(method.name)
        if step is not None:
            lengths = ""
            if step.lengths is not None:
                lengths = method.input_names[method.inputs.index(step.lengths)]
            found.append((number, step.tokens, lengths))
    counted = sorted({lengths for *_, lengths in found if lengths})
    if sum(bool(lengths) for *_, lengths in found) > 1:
        raise CompileError(
            message=f"method {method.name} advances two positions by row lengths "
            f"({', '.join(counted)}): at most one of its positions may have row "
            "lengths; give each cache a method of its own"
        )
    return replace(method, advances=tuple(found))
