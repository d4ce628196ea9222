"""Reset one row of a session, or make it a copy of another row, while the others stay.

In: the memory of sessions of one program, indices of rows. Out: the memory with that
row changed and all others bit for bit as they were. Each kind of state decides what a
row is. Everything is checked before anything is written.
"""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.sessions.rewinding import why_together
from kvc.runtime.sessions.sizes import count_rows, row_dim
from kvc.runtime.states.kind import Kind
from kvc.runtime.states.memory import StateMemory
from kvc.schema.errors import BadSetting, CacheOverflow, StateMismatch
from kvc.schema.model import CursorKind, Program, ResetRule


def reset_row(program: Program, memory: StateMemory, row: object) -> None:
    """Make one row as it is in a new session; states that a reset keeps stay.

    Raises:
        BadSetting: there is no such row.
        StateMismatch: a state, or the position, has no rows of its own.
        Poisoned: a call left states half written.
    """
    index = _check_row(program, memory, "reset_row", "row", row)
    memory.poisoned = "reset_row"  # stands if an interrupt comes in between
    for kind in _written(memory):
        if kind.group.first.reset is ResetRule.INITIAL:
            kind.reset_row(index)
    _count(program, memory, index, [0] * len(memory.counted))


def take_row(
    program: Program,
    memory: StateMemory,
    row: object,
    other: StateMemory,
    source: object,
    names: tuple[str, str, str],
) -> None:
    """Make one row as another row is, of the same session or of another.

    Args:
        program: of both.
        memory: to be written.
        row: of it.
        other: where the other row is.
        source: the other row.
        names: of the method that was called and of its two rows, for messages.

    Raises:
        BadSetting: there is no such row.
        StateMismatch: a state has no rows of its own, or rows of another shape.
        CacheOverflow: the other row has more tokens than there is room for.
        Poisoned: a call left states half written.
    """
    method, name, source_name = names
    index = _check_row(program, memory, method, name, row)
    found = _check_row(program, other, method, source_name, source)
    pairs = list(zip(_written(memory), _written(other), strict=True))
    for mine, theirs in pairs:
        _check_shape(method, mine, theirs)
    for number in range(len(program.cursors)):
        start = other.position(number)[found]
        limit = memory.room(number)
        if limit is not None and start > limit:
            raise CacheOverflow(row=index, start=0, count=start, capacity=limit)
    if memory is other and index == found:
        return
    memory.poisoned = method  # stands if an interrupt comes in between
    for mine, theirs in pairs:
        mine.take_row(index, theirs, found)
    _count(program, memory, index, [rows[found] for rows in other.counted])


def _positions(program: Program, memory: StateMemory) -> Sequence[int]:
    """Return the position of each row; zeros where nothing counts."""
    if program.position is None:
        return [0] * count_rows(program, memory.sizes)
    return memory.position()


def _written(memory: StateMemory) -> Sequence[Kind]:
    """Return the states that methods write; others are as in any session."""
    return [kind for kind in memory.kinds if kind.group.writers]


def _check_row(
    program: Program, memory: StateMemory, method: str, name: str, row: object
) -> int:
    """Return the index of a row of a session whose rows are apart.

    Raises:
        BadSetting: there is no such row.
        StateMismatch: a state, or the position, has no rows of its own.
        Poisoned: a call left states half written.
    """
    memory.check_usable()
    apart, expected = row_dim(program) is not None, "rows of its own"
    problems = [
        (kind.group.first.name, kind.row_problem())
        for kind in _written(memory)
        if apart or kind.grows
    ]
    problems += [
        ("position" if number == 0 else cursor.name, _row_problem(program, number))
        for number, cursor in enumerate(program.cursors)
    ]
    if not apart:
        problems.append(("position", "one position for all rows"))
    for state, reason in problems:
        if reason:
            raise StateMismatch(
                method=method, state=state, expected=expected, found=reason
            )
    count = len(_positions(program, memory))
    kind = int | np.integer
    if isinstance(row, bool) or not isinstance(row, kind) or not 0 <= row < count:
        raise BadSetting(name=name, expected=f"0..{count - 1}", found=repr(row))
    return int(row)


def _row_problem(program: Program, number: int) -> str:
    """Return why rows cannot be taken one by one at a cursor, "" where they can."""
    own = row_dim(program, number) == row_dim(program)
    return why_together(program, number) or ("" if own else "rows of another batch")


def _check_shape(method: str, mine: Kind, theirs: Kind) -> None:
    """Check that a row of one session fits into another.

    Raises:
        StateMismatch: it does not.
    """
    shapes = [list(kind.store.shape[1:]) for kind in (mine, theirs)]
    if shapes[0] != shapes[1]:
        raise StateMismatch(
            method=method,
            state=mine.group.first.name,
            expected=f"rows of shape {shapes[0]}",
            found=f"rows of shape {shapes[1]}",
        )


def _count(
    program: Program, memory: StateMemory, row: int, positions: Sequence[int]
) -> None:
    """Note where a row is at the cursors that the session counts; it is whole."""
    for number, cursor in enumerate(program.cursors):
        if cursor.kind is CursorKind.SESSION:
            counted = list(memory.counted[number])
            counted[row] = positions[number]
            memory.count(number, tuple(counted))
    memory.settle()
