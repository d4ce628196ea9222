"""The repr of a session: its position, or why it cannot be used.

In: the states' memory, which nothing else uses meanwhile. Out: a line; this never
fails.
"""

from collections.abc import Sequence

from kvc.runtime.sessions.positions import known_position
from kvc.runtime.states.memory import StateMemory
from kvc.schema.errors import StateMismatch
from kvc.schema.model import Cursor


def state_text(cursors: Sequence[Cursor], states: StateMemory) -> str:
    """Say how far open states of this process are."""
    if states.poisoned:
        return f"poisoned by {states.poisoned}"
    try:
        found = known_position(cursors, states)
    except StateMismatch:
        return "a position out of range"
    if found is None:
        return "no position"
    most = "" if states.capacity is None else f" of {states.capacity}"
    pending = sum(map(len, states.pending))
    return f"position {_rows(found)}{most}{f', {pending} pending' if pending else ''}"


def _rows(position: Sequence[int]) -> str:
    return str(position[0]) if len(position) == 1 else str(list(position))
