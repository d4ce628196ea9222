"""Rewind a session: drop its last tokens as if they had never run.

In: the memory of a session, how many tokens to drop in each row. Out: the same memory
at an earlier position. The class of each kind of state decides how far the state can go
back, and which slots are restored. Everything is checked before anything changes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from kvc.runtime.memory.arrays import Array, is_tensor, tensor_as_array
from kvc.runtime.sessions.sizes import takes_one_position
from kvc.runtime.sessions.usage import Usage, Use
from kvc.runtime.states.kept import (
    keep_copies,
    kept_nbytes,
    kept_positions,
    needing_copies,
)
from kvc.runtime.states.kind import Kind
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.errors import BadSetting, CannotRewind, NotRewindable
from kvc.schema.model import CursorKind, Program

_CURSOR: Final = 0  # the cursor that counts the tokens of prefill and decode


def rewind(program: Program, memory: StateMemory, count: object) -> bool:
    """Drop the last `count` tokens of each row; tell whether any were dropped.

    Raises:
        BadSetting: `count` is neither an int nor int64 [batch], or is not from 0 to the
            position.
        NoPosition: the program has no position.
        NotRewindable: a state cannot be restored at the earlier position.
        CannotRewind: `count` differs between rows, but all rows must go back by the
            same number of tokens.
        Poisoned: an earlier call failed and left states partly written.
    """
    given = _as_integers(count)
    if given is None or given.ndim > 1 or np.any(np.less(given, 0)):
        expected = "an int of 0 or more, or an array int64[batch] of them"
        raise BadSetting(name="count", expected=expected, found=repr(count))
    starts, firsts = _check_goes_back(program, memory)
    if given.shape not in ((), (len(starts),)):
        expected = f"an int, or an array int64[{len(starts)}]"
        raise BadSetting(name="count", expected=expected, found=repr(given))
    counts: list[int] = np.broadcast_to(given, (len(starts),)).tolist()
    most = [start - first for start, first in zip(starts, firsts, strict=True)]
    for row, (some, limit) in enumerate(zip(counts, most, strict=True)):
        if some > limit:
            where = f" in row {row}" if len(starts) > 1 else ""
            expected = f"0..{limit}, the tokens of this session{where}"
            raise BadSetting(name="count", expected=expected, found=some)
    return _go_back(program, memory, starts, counts, firsts)


def rewind_to_one(
    program: Program, memory: StateMemory, ends: Iterable[int]
) -> tuple[int, bool]:
    """Rewind a session of one row to the first reachable position of a list.

    Args:
        program: the program of the session.
        memory: the memory of the session.
        ends: the wanted positions, in order of preference.

    Returns:
        The new position; and whether it differs from the old position.

    Raises:
        NotRewindable: no position in `ends` is reachable; nothing has changed.
        NoPosition, Poisoned: as `rewind`.
    """
    starts, firsts = _check_goes_back(program, memory)
    (start,), (first,) = starts, firsts
    problem: NotRewindable | None = None
    for end in ends:
        if not first <= end <= start:
            continue
        try:
            return end, _go_back(program, memory, starts, [start - end], firsts)
        except NotRewindable as error:
            problem = problem or error
    if problem is None:
        reason = f"its position is {start}, before all requested positions"
        raise NotRewindable(state="position", reason=reason)
    raise problem


def forgettable_calls(
    program: Program, memory: StateMemory, methods: frozenset[str]
) -> int | None:
    """Return how many of the last calls of some methods a rewind can undo.

    Returns:
        The number of calls; None if nothing but the length of ring buffers limits that
        number.

    Raises:
        NotRewindable: a state that one of the methods writes cannot go back.
        NoPosition, Poisoned: as `rewind`.
    """
    _check_goes_back(program, memory)
    counting, limits = _counting(program), list[int]()
    for kind in memory.kinds:
        if not kind.group.writers & methods:
            continue
        reason = kind.why_lost(counting)
        if kind.by_copies and not kind.snapshots:
            reason = "copies are kept at some positions alone, not before each call"
        elif kind.by_copies:
            limits.append(kind.snapshots)
        elif kind.group.first.cursor != _CURSOR:
            reason = reason or "it is at another cursor, which the same calls advance"
        if reason:
            raise NotRewindable(state=kind.group.first.name, reason=reason)
    return min(limits, default=None)


def _go_back(
    program: Program,
    memory: StateMemory,
    starts: Sequence[int],
    counts: Sequence[int],
    firsts: Sequence[int],
) -> bool:
    """Drop the last tokens of each row; return whether any were dropped.

    Args:
        program: the program of the session.
        memory: the memory of the session.
        starts: the position of each row before the rewind.
        counts: how many tokens of each row to drop.
        firsts: the position of each row in a new session.

    Raises:
        NotRewindable, CannotRewind: as `rewind`; nothing has changed.
    """
    kinds = [kind for kind in memory.kinds if kind.group.writers]
    own = [kind for kind in kinds if kind.group.first.cursor == _CURSOR]
    if len(set(counts)) > 1:
        _check_rows(program, own)
    ends = [start - some for start, some in zip(starts, counts, strict=True)]
    for kind in own:
        if reason := kind.why_gone(starts, counts, firsts):
            raise NotRewindable(state=kind.group.first.name, reason=reason)
    if not any(counts):
        return False
    beside = [kind for kind in kinds if kind.group.first.cursor != _CURSOR]
    copied = _brought_back(program, beside, starts, ends, firsts)
    if len(set(counts)) > 1:
        _check_rows(program, copied)
    memory.poisoned = "rewind"  # remains set if an interrupt strikes before settle()
    for kind in (*own, *copied):
        kind.rewind(starts, ends, firsts)
    if program.cursors[_CURSOR].kind is CursorKind.SESSION:
        memory.count(_CURSOR, tuple(ends))
    memory.settle()
    return True


def most_rewindable(program: Program, memory: StateMemory) -> list[int]:
    """Return how many tokens of each row can be dropped by a rewind.

    Raises:
        NoPosition: the program has no position.
        NotRewindable: a state cannot go back at all.
        Poisoned: an earlier call failed and left states partly written.
    """
    starts, firsts = _check_goes_back(program, memory)
    most = [start - first for start, first in zip(starts, firsts, strict=True)]
    counting = _counting(program)
    for kind in memory.kinds:
        if kind.group.first.cursor == _CURSOR:
            most = list(map(min, most, kind.most_rewindable(starts)))
        elif kind.group.writers & counting:
            last = kind.ends.get(_CURSOR, firsts)
            ends = zip(starts, last, strict=False)
            kept = [max(start - end, 0) for start, end in ends]
            if kind.by_copies:
                kept = list(map(max, kept, kind.most_rewindable(starts)))
            most = list(map(min, most, kept))
    return most


def trim(memory: StateMemory) -> None:
    """Free the whole pages of states that lie after the positions of the rows."""
    positions = memory.known_positions()
    for kind in memory.kinds:
        cursor = kind.group.first.cursor
        kind.trim(None if cursor is None else positions[cursor])
    memory.owner.synchronise()


def _check_goes_back(
    program: Program, memory: StateMemory
) -> tuple[list[int], list[int]]:
    """Return the positions of a session, and the positions that a new session has.

    The position of a new session is not 0 if a counter state starts with a prefix.

    Raises:
        NoPosition: the program has no position.
        NotRewindable: a state that methods write cannot go back at all.
        Poisoned: an earlier call failed and left states partly written.
    """
    memory.check_usable()
    starts, counting = memory.position(), _counting(program)
    for kind in memory.kinds:
        own = kind.group.first.cursor == _CURSOR
        lost = own or (kind.group.writers and kind.group.writers >= counting)
        reason = kind.why_lost(counting) if lost and kind.group.writers else ""
        if reason:
            raise NotRewindable(state=kind.group.first.name, reason=reason)
    state = program.cursors[_CURSOR].state
    return starts, [0] * len(starts) if state is None else memory.first_counts(state)


def _counting(program: Program) -> frozenset[str]:
    """Return the names of the methods that advance the position."""
    methods = (m for m in program.methods if m.advance_of(_CURSOR) is not None)
    return frozenset(method.name for method in methods)


def _brought_back(
    program: Program,
    kinds: Sequence[Kind],
    starts: Sequence[int],
    ends: Sequence[int],
    firsts: Sequence[int],
) -> list[Kind]:
    """Return the states that a rewind must restore from copies.

    Only states that belong to a cursor other than that of the position are considered.

    Args:
        program: the program of the session.
        kinds: the states at other cursors.
        starts: the position of each row before the rewind.
        ends: the position of each row after the rewind.
        firsts: the position of each row in a new session.

    Raises:
        NotRewindable: the rewind would undo a call that wrote a state without a copy.
    """
    counting, found = _counting(program), []
    counts = [start - end for start, end in zip(starts, ends, strict=True)]
    for kind in kinds:
        reason = kind.why_beside(_CURSOR, counting, ends)
        if reason and kind.by_copies:
            # If other methods write the state, a new session's content is no
            # substitute.
            anew = firsts if kind.group.writers <= counting else [-1] * len(firsts)
            reason = kind.why_gone(starts, counts, anew)
            found.append(kind)
        if reason:
            raise NotRewindable(state=kind.group.first.name, reason=reason)
    return found


def _check_rows(program: Program, kinds: Sequence[Kind]) -> None:
    """Check that the states allow rows to go back by different numbers of tokens.

    Raises:
        CannotRewind: the states require the same number for all rows.
    """
    problems = [why_together(program, _CURSOR), *(kind.row_problem() for kind in kinds)]
    for reason in filter(None, problems):
        raise CannotRewind(reason=reason)


def why_together(program: Program, cursor: int) -> str:
    """Return why all rows must have the same position at a cursor, or "".

    The result is "" if each row can have its own position.
    """
    for method in program.methods:
        if takes_one_position(method, program, cursor):
            return f"method {method.name} takes one position for all rows"
    return ""


def _as_integers(count: object) -> Array | None:
    """Return a count as an integer array, None for any other type."""
    if is_tensor(count):
        count = tensor_as_array(count)  # type: ignore[arg-type]  # is_tensor says so
    if isinstance(count, bool) or not isinstance(count, int | np.integer | np.ndarray):
        return None
    given = np.asarray(count)
    return given if given.dtype.kind in "iu" else None


# `GoingBack`: undoing speculative tokens


class GoingBack:
    """Undoes the last tokens of one session."""

    def __init__(self, usage: Usage, note_change: Callable[[], None]) -> None:
        """Store the session's usage, and a function to call after a change."""
        self._usage, self._note_change = usage, note_change

    def forgettable_calls(self, methods: Iterable[str]) -> int | None:
        """Return how many of the last calls of `methods` can be undone.

        Returns:
            The number of calls; None if nothing but the length of ring buffers limits
            that number.

        Raises:
            NotRewindable: a state that one of the methods writes cannot go back.
            NoPosition, Poisoned, Busy, Closed, Forked: as `Session.rewind`.
        """
        usage = self._usage
        with Use(usage, "rewind"):
            program = usage.engine.program
            return forgettable_calls(program, usage.states, frozenset(methods))

    def to_one_of(self, ends: Iterable[int]) -> int:
        """Rewind to the first position in `ends` that the states can reach.

        Returns:
            That position.

        Raises:
            NotRewindable: no position in `ends` is reachable; nothing has changed.
            NoPosition, Poisoned, Busy, Closed, Forked: as `Session.rewind`.
        """
        usage = self._usage
        with Use(usage, "rewind"):
            end, changed = rewind_to_one(usage.engine.program, usage.states, ends)
            if changed:
                self._note_change()
            return end

    @property
    def needs_copies(self) -> bool:
        """Tell whether a rewind to some position needs a copy that is kept there."""
        with Use(self._usage, "rewind"):
            return bool(needing_copies(self._usage.states))

    @property
    def kept(self) -> Sequence[int]:
        """Return the positions at which copies are kept, the greatest first."""
        with Use(self._usage, "rewind"):
            return kept_positions(self._usage.states)

    @property
    def kept_nbytes(self) -> int:
        """Return how many bytes the kept copies take."""
        with Use(self._usage, "rewind"):
            return kept_nbytes(self._usage.states.kinds)

    def keep_at(self, position: int | None, most: int = 1) -> None:
        """Have the next prompt of a generation keep copies where it comes by.

        Args:
            position: where to keep copies of the states that need them; None for
                nowhere.
            most: the greatest number of positions with copies; the oldest are dropped.
        """
        with Use(self._usage, "rewind"):
            states = self._usage.states
            states.keep_at = None if position is None else (position, most)

    @property
    def keeps_at(self) -> int | None:
        """Return the position that `keep_at` has set, None for none."""
        found = self._usage.states.keep_at
        return None if found is None else found[0]

    def keep(self) -> None:
        """Keep copies if the session is at the position that `keep_at` has set."""
        with Use(self._usage, "rewind"):
            states = self._usage.states
            if states.keep_at is not None and states.position()[0] == self.keeps_at:
                keep_copies(states, states.keep_at[1])
                states.keep_at = None

    def give_up(self, method: str) -> None:
        """Poison the session, since a call of `method` cannot be undone.

        The session refuses calls until a reset.

        Raises:
            Busy, Closed, Forked: as `Session.rewind`.
        """
        with Use(self._usage, "rewind"):
            self._usage.states.poisoned = method
            self._note_change()
