"""Going back: the last tokens of a session are forgotten, as if they had never run.

In: the memory of a session, how many tokens to forget in each row. Out: the same memory
at an earlier position. Slots of caches get their initial content again, and whole pages
of them go back to the system; rings are for `rings.py`. Everything is checked before
anything changes.
"""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.arrays import Array, is_tensor, tensor_as_array
from kvc.runtime.positions import find_position, takes_one_position
from kvc.runtime.rings import check_forgettable, forget, held_slots, reached_by
from kvc.runtime.states import StateMemory, Tip
from kvc.runtime.transactions import check_usable, rows_of
from kvc.schema.errors import BadSetting, CannotRewind, NoPosition, NotRewindable
from kvc.schema.model import CursorKind, Program, State, StateKind


def rewind(program: Program, memory: StateMemory, count: object) -> bool:
    """Forget the last `count` tokens: an int, or int64 [batch]; tell if there are any.

    Raises:
        BadSetting: `count` is not from 0 to the position.
        NoPosition: nothing counts tokens.
        NotRewindable: a state cannot go back.
        CannotRewind: rows would go back by different counts where they must not.
        Poisoned: a call left states half written.
    """
    check_usable(memory)
    starts = find_position(program.position, memory)
    _check_states(program)
    firsts = _first_position(program, memory, starts)
    counts = _check_counts(count, starts, firsts)
    _check_rows(program, memory, counts)
    check_forgettable(memory, starts, counts, firsts)
    if not any(counts):
        return False
    memory.poisoned = "rewind"  # stands if an interrupt comes in between
    ends = [start - some for start, some in zip(starts, counts, strict=True)]
    _put_slots_back(memory, ends)
    forget(memory, starts, ends, firsts)
    _count_down(memory, counts)
    position = program.position
    _shorten(memory, ends, position is not None and position.kind is CursorKind.SESSION)
    memory.poisoned = ""
    return True


def most_rewindable(program: Program, memory: StateMemory) -> list[int]:
    """Return how many tokens each row can forget.

    Raises:
        NoPosition: nothing counts tokens.
        NotRewindable: a state cannot go back at all.
        Poisoned: a call left states half written.
    """
    check_usable(memory)
    starts = find_position(program.position, memory)
    _check_states(program)
    firsts = _first_position(program, memory, starts)
    found = []
    for start, reached, first in zip(
        starts, reached_by(memory, starts), firsts, strict=True
    ):
        limits = (ring.most_forgotten(start, reached) for ring in memory.rings)
        known = [limit for limit in limits if limit is not None]
        found.append(min([start - first, *known]))
    return found


def trim(program: Program, memory: StateMemory) -> None:
    """Give back whole pages at and behind the position, of each row."""
    try:
        ends = find_position(program.position, memory) or [0]
    except NoPosition:
        ends = None
    for state, declared in enumerate(program.states):
        if declared.kind is StateKind.APPEND:
            memory.give_back(state, memory.tip.lengths[state])
        elif _goes_back(declared) and ends is not None:
            for row, end in rows_of(memory, state, ends):
                memory.put_back(state, row, end, memory.written)
                memory.give_back(state, end, row)
    if ends is not None:
        memory.written = min(memory.written, max(ends))
        for ring in memory.rings:
            memory.give_back(ring.state, held_slots(memory, ring.slots))


def _goes_back(state: State) -> bool:
    """Tell whether slots of a state behind the position can be cleared."""
    return state.at_position and state.kind is not StateKind.RING


def _check_states(program: Program) -> None:
    """Check that everything that methods write can go back.

    Raises:
        NotRewindable: a state cannot.
    """
    counting = {m.name for m in program.methods if m.advance is not None}
    for state, declared in enumerate(program.states):
        writers = {m.name for m in program.methods if state in m.writes}
        if not writers or _goes_back(declared) or declared.window is not None:
            continue
        if declared.kind is not StateKind.COUNTER:
            reason = _why_lost(declared.kind)
            raise NotRewindable(state=declared.name, reason=reason)
        if writers != counting:
            lost = sorted(writers ^ counting)[0]
            reason = f"method {lost} does not count it together with the position"
            raise NotRewindable(state=declared.name, reason=reason)


def _why_lost(kind: StateKind) -> str:
    """Return why a state of a kind cannot go back."""
    if kind in (StateKind.LINEAR, StateKind.APPEND):
        return "it is not written at the position by every method"
    found = kind.name.lower()
    if kind is StateKind.RING:
        found = (
            "a ring without a window (compiler/README.md has which reads and writes of "
            "a ring give it one)"
        )
    return f"it is {found}, and what a call wrote over it is gone"


def _first_position(
    program: Program, memory: StateMemory, starts: Sequence[int]
) -> list[int]:
    """Return the position of a new session: a counter may begin with a prefix."""
    position = program.position
    if position is None or position.state is None:
        return [0] * len(starts)
    return memory.first_counts(position.state)


def _check_counts(
    count: object, starts: Sequence[int], firsts: Sequence[int]
) -> list[int]:
    """Return how many tokens each row forgets.

    Raises:
        BadSetting: it is no int and no int64 [batch], or not from 0 to the position.
    """
    given = _as_integers(count)
    if given is None or given.shape not in ((), (len(starts),)):
        expected = f"an int, or an array int64[{len(starts)}]"
        raise BadSetting(name="count", expected=expected, found=repr(count))
    counts: list[int] = np.broadcast_to(given, (len(starts),)).tolist()
    most = [start - first for start, first in zip(starts, firsts, strict=True)]
    for row, (some, limit) in enumerate(zip(counts, most, strict=True)):
        if not 0 <= some <= limit:
            where = f" in row {row}" if len(starts) > 1 else ""
            expected = f"0..{limit}, the tokens of this session{where}"
            raise BadSetting(name="count", expected=expected, found=some)
    return counts


def _as_integers(count: object) -> Array | None:
    """Return a count as an array, None when it is no whole number."""
    if is_tensor(count):
        count = tensor_as_array(count)  # type: ignore[arg-type]  # is_tensor says so
    if isinstance(count, bool) or not isinstance(count, int | np.integer | np.ndarray):
        return None
    given = np.asarray(count)
    return given if given.dtype.kind in "iu" else None


def _check_rows(program: Program, memory: StateMemory, counts: Sequence[int]) -> None:
    """Check that rows may go back by different counts.

    Raises:
        CannotRewind: they may not.
    """
    if len(set(counts)) < 2:
        return
    for method in program.methods:
        if takes_one_position(method, program.cursors[0]):
            reason = f"method {method.name} is given one position for all of them"
            raise CannotRewind(reason=reason)
    for declared, array in zip(memory.states, memory.arrays, strict=True):
        if declared.kind is StateKind.APPEND:
            reason = f"the rows of {declared.name} have one length"
            raise CannotRewind(reason=reason)
        placed = _goes_back(declared) or declared.window is not None
        counted = declared.kind is StateKind.COUNTER or placed
        if counted and (not array.ndim or array.shape[0] != len(counts)):
            raise CannotRewind(reason=f"{declared.name} has no rows of its own")


def _put_slots_back(memory: StateMemory, ends: Sequence[int]) -> None:
    """Give the slots behind the new position their initial content again."""
    for state, declared in enumerate(memory.states):
        if declared.kind is StateKind.APPEND and declared.at_position:
            memory.put_back(state, None, ends[0], memory.tip.lengths[state])
        elif _goes_back(declared):
            for row, low in rows_of(memory, state, ends):
                memory.put_back(state, row, low, memory.written)
    memory.written = max(ends)


def _count_down(memory: StateMemory, counts: Sequence[int]) -> None:
    equal = len(set(counts)) < 2
    for state, (declared, array) in enumerate(
        zip(memory.states, memory.arrays, strict=True)
    ):
        if declared.kind is StateKind.COUNTER:
            memory.note_change(state)
            shape = (-1,) + (1,) * (array.ndim - 1)
            array -= counts[0] if equal else np.reshape(counts, shape)  # type: ignore[misc]


def _shorten(memory: StateMemory, ends: Sequence[int], counted: bool) -> None:
    """Cut lengths, and the position if the session counts it."""
    lengths = tuple(min(length, ends[0]) for length in memory.tip.lengths)
    memory.tip = Tip(lengths, tuple(ends) if counted else memory.tip.counted)
