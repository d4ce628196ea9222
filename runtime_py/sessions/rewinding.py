"""Rewind a session: drop its last tokens as if they had never run.

In: the memory of a session, how many tokens to drop in each row. Out: the same memory
at an earlier position. The class of each kind of state decides how far the state can go
back, and which slots are restored. Everything is checked before anything changes.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.runtime.memory.arrays import Array, is_tensor, tensor_as_array
from kvc.runtime.sessions.sizes import takes_one_position
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
    starts, firsts = check_goes_back(program, memory)
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


def rewind_rows(
    program: Program, memory: StateMemory, ends: Sequence[Sequence[int]]
) -> tuple[Sequence[int], bool]:
    """Rewind each row of a session to the first reachable position of a list.

    Args:
        program: the program of the session.
        memory: the memory of the session.
        ends: for each row the wanted positions, in order of preference.

    Returns:
        The new positions; and whether one of them differs from the old position.

    Raises:
        NotRewindable: a row can reach no position of its list; nothing has changed.
        CannotRewind, NoPosition, Poisoned: as `rewind`.
    """
    starts, firsts = check_goes_back(program, memory)
    found = check_rows_reach(program, memory, ends)
    counts = [start - end for start, end in zip(starts, found, strict=True)]
    return found, _go_back(program, memory, starts, counts, firsts)


def check_rows_reach(
    program: Program, memory: StateMemory, ends: Sequence[Sequence[int]]
) -> list[int]:
    """Return for each row the first position of its list that it can be rewound to.

    Raises:
        KvcError: as `rewind_rows`.
    """
    starts, firsts = check_goes_back(program, memory)
    return [
        _first_reachable(program, memory, starts, firsts, row, wanted)
        for row, wanted in enumerate(ends)
    ]


def _first_reachable(
    program: Program,
    memory: StateMemory,
    starts: Sequence[int],
    firsts: Sequence[int],
    row: int,
    ends: Sequence[int],
) -> int:
    """Return the first position of a list that one row can be rewound to.

    Raises:
        NotRewindable: there is none.
        CannotRewind: as `rewind`.
    """
    problem: NotRewindable | None = None
    for end in ends:
        if not firsts[row] <= end <= starts[row]:
            continue
        counts = [0] * len(starts)
        counts[row] = starts[row] - end
        try:
            _find_changing(program, memory, starts, counts, firsts)
            return end
        except NotRewindable as error:
            problem = problem or error
    if problem is None:
        where = f" in row {row}" if len(starts) > 1 else ""
        reason = f"its position{where} is {starts[row]}, before all requested positions"
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
        CannotRewind: several rows would have to go back by the same number of tokens.
        NoPosition, Poisoned: as `rewind`.
    """
    starts, _ = check_goes_back(program, memory)
    written = [kind for kind in memory.kinds if kind.group.writers & methods]
    if len(starts) > 1:
        _check_rows(program, written)
    counting, limits = _counting(program), list[int]()
    for kind in written:
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
    changing = _find_changing(program, memory, starts, counts, firsts)
    if not any(counts):
        return False
    ends = [start - some for start, some in zip(starts, counts, strict=True)]
    memory.poisoned = "rewind"  # remains set if an interrupt strikes before settle()
    for kind in changing:
        kind.rewind(starts, ends, firsts)
    if program.cursors[_CURSOR].kind is CursorKind.SESSION:
        memory.count(_CURSOR, tuple(ends))
    memory.settle()
    return True


def _find_changing(
    program: Program,
    memory: StateMemory,
    starts: Sequence[int],
    counts: Sequence[int],
    firsts: Sequence[int],
) -> list[Kind]:
    """Return the states that a rewind changes; arguments as of `_go_back`.

    Raises:
        NotRewindable, CannotRewind: as `rewind`.
    """
    kinds = [kind for kind in memory.kinds if kind.group.writers]
    own = [kind for kind in kinds if kind.group.first.cursor == _CURSOR]
    if len(set(counts)) > 1:
        _check_rows(program, own)
    for kind in own:
        if reason := kind.why_gone(starts, counts, firsts):
            raise NotRewindable(state=kind.group.first.name, reason=reason)
    if not any(counts):
        return []
    ends = [start - some for start, some in zip(starts, counts, strict=True)]
    beside = [kind for kind in kinds if kind.group.first.cursor != _CURSOR]
    copied = _brought_back(program, beside, starts, ends, firsts)
    if len(set(counts)) > 1:
        _check_rows(program, copied)
    return [*own, *copied]


def most_rewindable(program: Program, memory: StateMemory) -> list[int]:
    """Return how many tokens of each row can be dropped by a rewind.

    Raises:
        NoPosition: the program has no position.
        NotRewindable: a state cannot go back at all.
        Poisoned: an earlier call failed and left states partly written.
    """
    starts, firsts = check_goes_back(program, memory)
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


def check_goes_back(
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
