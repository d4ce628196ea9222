"""Checks of a call against its session, and the reset before an encoder runs.

In: the entry of a method, the inputs or the demand of a call, the states of a session.
Out: nothing, or an error; nothing has run.
"""

from collections.abc import Sequence

from kvc.runtime.calls.entries import MethodEntry
from kvc.runtime.calls.inputs import Inputs
from kvc.runtime.states.kind import Demand, Kind
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.errors import CallTooLong, StateMismatch
from kvc.schema.model import Method


def too_long(method: Method, count: int, kind: Kind) -> CallTooLong:
    """Return the error for a call with more tokens than a kind of state allows."""
    return CallTooLong(
        method=method.name,
        count=count,
        longest=kind.longest,
        state=kind.group.first.name,
        slots=kind.store.slots,
        window=str(kind.window),
    )


def check_rows(method: Method, demand: Demand, starts: Sequence[int]) -> None:
    """Check that a call has a row length for each row of its session.

    Raises:
        StateMismatch: the number of row lengths differs from the number of rows.
    """
    if demand.row_lengths is not None and len(demand.row_lengths) != len(starts):
        raise StateMismatch(
            method=method.name,
            state="position",
            expected=f"row lengths of {len(starts)} rows",
            found=f"row lengths of {len(demand.row_lengths)}",
        )


def check_takes_rows(entry: MethodEntry) -> None:
    """Check that a method can be called for some rows of a session alone.

    Raises:
        StateMismatch: calls of the method change all rows.
    """
    advances = entry.method.advances
    if advances and all(one.lengths is not None for one in advances):
        return
    raise StateMismatch(
        method=entry.method.name,
        state="position",
        expected="row lengths, by which other rows stay as they are",
        found="a method that changes all rows",
    )


def restart(entry: MethodEntry, inputs: Inputs, states: StateMemory) -> None:
    """Reset a session before an encode call, after a check that the call has room.

    Raises:
        InputMismatch: the inputs do not have the declared shapes.
        CacheOverflow: the call needs more room than the session has.
    """
    demand = entry.demand(entry.solve(inputs, states))
    for cursor, starts in enumerate(states.known_positions()):
        added = demand.added_to(cursor)
        if starts is not None and added.advance is not None:
            states.check_room(cursor, [0] * len(starts), added.steps(len(starts)))
    states.reset()
