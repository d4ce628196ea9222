"""Map each state to the class of its kind.

In: a state or a method's writes. Out: the class of the state's kind, or the writes by
groups. A new kind is a file in this folder and a row in `kind_of`.
"""

from collections.abc import Mapping, Sequence

from kvc.runtime.states.counter import Counter
from kvc.runtime.states.growing import Append
from kvc.runtime.states.kind import Kind, Write, Writes
from kvc.runtime.states.linear import Linear
from kvc.runtime.states.owner import Group
from kvc.runtime.states.plain import Plain
from kvc.runtime.states.ring import Ring
from kvc.schema.graph import AccessMode
from kvc.schema.model import Method, State, StateKind
from kvc.schema.types import Dim


def kind_of(state: State) -> type[Kind]:
    """Return the kind class of a state."""
    match state.kind:
        case StateKind.COUNTER:
            return Counter
        case StateKind.LINEAR if state.at_position:
            return Linear
        case StateKind.RING if state.window is not None:
            return Ring
        case StateKind.APPEND:
            return Append
        case _:
            return Plain


def find_writes(
    method: Method, written: Sequence[Write], groups: Sequence[Group]
) -> tuple[Writes, ...]:
    """Return a method's writes of states, by groups.

    Args:
        method: the method as the bundle declares it.
        written: the method's writes of states, in order.
        groups: the groups of the program's states.
    """
    by_state: Mapping[int, list[Write]] = {state: [] for state in method.writes}
    for write in written:
        by_state[write.state].append(write)
    found = []
    for number, group in enumerate(groups):
        if method.name in group.writers:
            own = [write for state in group.states for write in by_state[state]]
            kind = kind_of(group.first)
            risks = tuple(w for w in own if w.access.mode not in kind.undoes)
            cursor = group.first.cursor
            extents = _extents(own, cursor, method) if kind.placed else ()
            placed = cursor is not None
            # Each write covers fewer tokens than a call adds, as in loops.
            advance = None if cursor is None else method.advance_of(cursor)
            piecewise = advance is not None and all(
                write.access.size != advance.tokens for write in own
            )
            found.append(Writes(number, risks, extents, cursor or 0, placed, piecewise))
    return tuple(found)


def _extents(
    own: Sequence[Write], cursor: int | None, method: Method
) -> tuple[Dim, ...] | None:
    """Return how many slots writes cover from the cursor on, as dims.

    Return None if the number is unknown for one of the writes.
    """
    advance = None if cursor is None else method.advance_of(cursor)
    slots = all(write.access.mode is AccessMode.SLOTS for write in own)
    if not own:
        return ()
    if not slots or advance is None or advance.tokens is None:
        return None
    return (advance.tokens,)
