"""Check the declarations of a program's states: memory that outlives a call.

In: a decoded program whose names have been checked. Out: nothing, or the first error.
`methods.py` checks the accesses of methods to states, `cursors.py` checks cursors.
"""

from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.model import Program, State, StateKind
from kvc.schema.types import symbols_in
from kvc.schema.verify import limits
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.limits import Reporter

_WITHOUT_AXIS: Final = (StateKind.PLAIN, StateKind.COUNTER)
_AT_CURSOR: Final = (
    StateKind.LINEAR,
    StateKind.RING,
    StateKind.APPEND,
    StateKind.COUNTER,
)


def check_states(program: Program, sizes: CheckedTypes, report: Reporter) -> None:
    """Check the declarations of a program's states.

    Raises:
        BadProgram, LimitExceeded: a declaration is wrong.
    """
    report.limit("the number of states", len(program.states), limits.MAX_STATES)
    report.unique([state.name for state in program.states], "states")
    for state in program.states:
        where, rank = f"state {state.name!r}", len(state.type.dims)
        sizes.check(state.type, where)
        permuted = sorted(state.layout) == list(range(rank))
        report.require(permuted, where, f"layout {state.layout} of {rank} dims")
        flat = state.kind in _WITHOUT_AXIS
        report.require(
            flat == (state.axis is None), where, "axis and kind do not agree"
        )
        if state.axis is not None:
            report.require(
                state.axis < rank, where, f"axis {state.axis} of {rank} dims"
            )
        if state.kind is StateKind.COUNTER:
            report.require(_counts(state), where, f"{state.type} as a counter")
        if state.cursor is not None:
            placed = state.kind in _AT_CURSOR and state.cursor < len(program.cursors)
            report.require(placed, where, "nothing places it at a cursor")
        counts = state.kind is not StateKind.COUNTER or state.cursor is not None
        report.require(counts, where, "a counter of no cursor")
        if state.initial is not None:
            _check_initial(state, state.initial, program, where, report)


def _counts(state: State) -> bool:
    whole = state.type.dtype in (DType.INT32, DType.INT64)
    return whole and len(state.type.dims) <= 1


def _check_initial(
    state: State, initial: int, program: Program, where: str, report: Reporter
) -> None:
    growing = state.kind is StateKind.APPEND
    report.require(not growing, where, "a growing state starts empty, without a value")
    report.require(initial < len(program.names), where, f"no data {initial}")
    start = program.names[initial].type
    same = start == state.type and state.type.is_static
    report.require(same, where, f"{state.type} cannot start as {start}")


def fixed_symbols(program: Program) -> frozenset[str]:
    """Return the symbols in types of states; a session fixes their sizes."""
    return frozenset(symbols_in(state.type for state in program.states))
