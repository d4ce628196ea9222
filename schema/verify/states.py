"""What a program says about memory that outlives a call: states and the position.

In: a decoded program whose names have been checked. Out: nothing, or the first thing
that is impossible. What methods do to states is for `methods.py`.
"""

from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.model import Position, PositionKind, Program, State, StateKind
from kvc.schema.types import symbols_in, symbols_of
from kvc.schema.verify import limits
from kvc.schema.verify.dims import Sizes
from kvc.schema.verify.faults import Reporter

_WITHOUT_AXIS: Final = (StateKind.PLAIN, StateKind.COUNTER)
_AT_POSITION: Final = (StateKind.LINEAR, StateKind.RING, StateKind.APPEND)


def check_states(program: Program, sizes: Sizes, report: Reporter) -> None:
    """Check the states, and the position.

    Raises:
        BadProgram, LimitExceeded: something is wrong.
    """
    report.limit("the number of states", len(program.states), limits.MAX_STATES)
    report.unique([state.name for state in program.states], "states")
    for state in program.states:
        _check_state(state, program, sizes, report)
    if program.position:
        _check_position(program.position, program, report)
        _check_capacity(program.position, program, sizes, report)


def _check_state(
    state: State, program: Program, sizes: Sizes, report: Reporter
) -> None:
    where, rank = f"state {state.name!r}", len(state.type.dims)
    sizes.check(state.type, where)
    permuted = sorted(state.layout) == list(range(rank))
    report.require(permuted, where, f"layout {state.layout} of {rank} dims")
    flat = state.kind in _WITHOUT_AXIS
    report.require(flat == (state.axis is None), where, "axis and kind do not agree")
    if state.axis is not None:
        report.require(state.axis < rank, where, f"axis {state.axis} of {rank} dims")
    if state.kind is StateKind.COUNTER:
        report.require(_counts(state), where, f"{state.type} as a counter")
    if state.at_position:
        placed = state.kind in _AT_POSITION and program.position is not None
        report.require(placed, where, "nothing places it at a position")
    if state.initial is not None:
        _check_initial(state, state.initial, program, where, report)


def _counts(state: State) -> bool:
    whole = state.type.dtype in (DType.INT32, DType.INT64)
    return whole and len(state.type.dims) <= 1


def _check_initial(
    state: State, initial: int, program: Program, where: str, report: Reporter
) -> None:
    growing = state.kind is StateKind.APPEND
    report.require(not growing, where, "what grows starts empty, without a value")
    report.require(initial < len(program.names), where, f"no data {initial}")
    start = program.names[initial].type
    same = start == state.type and state.type.is_static
    report.require(same, where, f"{state.type} cannot start as {start}")


def _check_position(position: Position, program: Program, report: Reporter) -> None:
    where, states = "position", program.states
    named = position.kind is PositionKind.INPUT
    report.require(named == bool(position.input_name), where, "kind and input name")
    counted = position.kind is PositionKind.STATE
    report.require(counted == (position.state is not None), where, "kind and state")
    if named:
        report.name(position.input_name, where)
    if position.state is not None:
        report.require(position.state < len(states), where, "no such state")
        state = states[position.state]
        fits = state.kind is StateKind.COUNTER and state.type.dtype is DType.INT64
        what = f"it is {state.kind.name} of {state.type}, not COUNTER of int64"
        report.require(fits, where, what)
    if position.kind is PositionKind.LENGTH:
        growing = any(state.kind is StateKind.APPEND for state in states)
        report.require(growing, where, "no state grows by appending")


def _check_capacity(
    position: Position, program: Program, sizes: Sizes, report: Reporter
) -> None:
    """Check that a session knows the capacity: from symbols that it fixes."""
    capacity = position.capacity
    if capacity is None:
        return
    sizes.check_dim(capacity, "position")
    fixed = fixed_symbols(program)
    free = [name for name in symbols_of([capacity]) if name not in fixed]
    what = f"its capacity {capacity} has {free}, which no state does"
    report.require(not free, "position", what)


def fixed_symbols(program: Program) -> frozenset[str]:
    """Return the symbols that a session fixes: those of its states' types."""
    return frozenset(symbols_in(state.type for state in program.states))
