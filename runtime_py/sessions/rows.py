"""Reset one row of a session, or copy a row to it; other rows do not change.

In: the memory of sessions of one program, row indices. Out: the memory with one changed
row; all other rows are bit for bit as before. The class of each kind of state decides
which bytes belong to a row. Everything is checked before anything is written.
"""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.rewinding import (
    check_goes_back,
    check_rows_reach,
    rewind,
    why_together,
)
from kvc.runtime.sessions.sizes import count_rows, row_dim, whole_number
from kvc.runtime.states.kind import Kind
from kvc.runtime.states.row_range import RowRange
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.errors import BadSetting, CacheOverflow, NotRewindable, StateMismatch
from kvc.schema.model import CursorKind, Program, ResetRule
from kvc.schema.types import affine, symbols_of


def reset_row(program: Program, memory: StateMemory, row: object) -> None:
    """Give one row the content of a new session, except states that a reset keeps.

    Raises:
        BadSetting: there is no such row.
        StateMismatch: a state, or the position, is shared by all rows.
        Poisoned: an earlier call failed and left states partly written.
    """
    index = _check_row(program, memory, "reset_row", "row", row)
    memory.poisoned = "reset_row"  # remains set if an interrupt strikes before _count()
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
    tokens: object = None,
) -> None:
    """Copy a row of a session into a row of the same or another session.

    Args:
        program: the program of both sessions.
        memory: the memory that is written.
        row: the row of `memory` to write.
        other: the memory of the source row.
        source: the row of `other` to read.
        names: three names for messages: the called method, the argument for `row`, and
            the argument for `source`.
        tokens: how many of the row's first tokens to copy, None for all.

    Raises:
        BadSetting: there is no such row, or it has fewer tokens.
        NotRewindable, CannotRewind: as `rewind`, of rows that lose different numbers of
            tokens.
        StateMismatch: a state is shared by all rows, or the rows of a state have
            different shapes in the two sessions.
        CacheOverflow: the source row has more tokens than the target has room for.
        NotLoaded: the program of `memory` has not loaded the row's adapter.
        Poisoned: an earlier call failed and left states partly written.
    """
    method, name, source_name = names
    index = _check_row(program, memory, method, name, row)
    found = _check_row(program, other, method, source_name, source)
    for mine, theirs in zip(_written(memory), _written(other), strict=True):
        _check_shape(method, mine, theirs)
    for number in range(len(program.cursors)):
        start = other.position(number)[found]
        limit = memory.room(number)
        if limit is not None and start > limit:
            raise CacheOverflow(row=index, start=0, count=start, capacity=limit)
    count = 0 if tokens is None else _cut(program, other, found, tokens)
    copies = memory is not other or index != found
    if copies and count:
        _check_copied(program, other, found, count)
    if copies:
        _copy(program, memory, index, other, found, method, count)
    if count:
        counts = np.zeros(len(memory.position()), np.int64)
        counts[index] = count
        rewind(program, memory, counts)


def _cut(program: Program, memory: StateMemory, row: int, tokens: object) -> int:
    """Return how many tokens a row has beyond its first `tokens`, if it can lose them.

    Raises:
        BadSetting: the row has fewer tokens.
        NotRewindable, CannotRewind: the row cannot go back to so many tokens.
    """
    held = memory.position()[row]
    wanted = whole_number("tokens", tokens)
    if not 0 <= wanted <= held:
        expected = f"0..{held}, the tokens of row {row}"
        raise BadSetting(name="tokens", expected=expected, found=wanted)
    if wanted < held:
        ends = [[at] for at in memory.position()]
        ends[row] = [wanted]
        check_rows_reach(program, memory, ends)
    return held - wanted


def _check_copied(program: Program, memory: StateMemory, row: int, count: int) -> None:
    """Check that a copy of a row, which is without kept copies, can drop tokens.

    Raises:
        NotRewindable: the row itself can drop them only since copies were kept.
    """
    starts, firsts = check_goes_back(program, memory)
    if starts[row] - count == firsts[row]:
        return
    for kind in _written(memory):
        own = kind.group.first.cursor == 0 and bool(kind.kept_positions)
        if kind.by_copies or (own and count > kind.most_rewindable(starts)[row]):
            reason = "the copies that were kept of a row do not go with it"
            raise NotRewindable(state=kind.group.first.name, reason=reason)


def _copy(
    program: Program,
    memory: StateMemory,
    index: int,
    other: StateMemory,
    found: int,
    method: str,
    cut: int,
) -> None:
    """Copy a checked row; its last `cut` tokens will be dropped.

    Raises:
        NotLoaded: as `take_row`.
    """
    held, adapter = other.adapters, None
    if memory.adapters is not None and held is not None:
        adapter = memory.adapters.same(held.rows[found])
    memory.poisoned = method  # remains set if an interrupt strikes before _count()
    if memory.adapters is not None and adapter is not None:
        memory.adapters.choose_row(memory, index, adapter)
    for mine, theirs in zip(_written(memory), _written(other), strict=True):
        cursor = mine.group.first.cursor
        mine.take_row(index, theirs, found, cut if cursor == 0 else 0)
    _count(program, memory, index, [rows[found] for rows in other.counted])


def choose_rows(
    program: Program, memory: StateMemory, first: object, count: object
) -> RowRange:
    """Return a range of rows whose methods can be called alone.

    Raises:
        BadSetting: there are no such rows.
        StateMismatch: a state, or the position, is shared by all rows, or the rows of a
            state do not lie one after the other in host memory.
        Poisoned: an earlier call failed and left states partly written.
    """
    begin = _check_row(program, memory, "some_rows", "first", first)
    number = whole_number("count", count)
    most = len(_positions(program, memory)) - begin
    if not 1 <= number <= most:
        raise BadSetting(name="count", expected=f"1..{most}", found=number)
    dim = row_dim(program)
    symbols = tuple(symbols_of([] if dim is None else [dim]))
    own = [state.type.dims[:1] == (dim,) for state in program.states]
    mixed = [
        state.name
        for state, held, has in zip(program.states, memory.buffers, own, strict=True)
        if has and not (isinstance(held, np.ndarray) and _in_order(held))
    ]
    if len(symbols) != 1 or dim != affine(0, {symbols[0]: 1}):
        mixed = ["position"]
    if mixed:
        raise StateMismatch(
            method="some_rows",
            state=mixed[0],
            expected="rows one after the other in host memory",
            found="another order, another device, or a fixed number of rows",
        )
    return RowRange(begin, number, symbols[0], tuple(own))


def _in_order(array: Array) -> bool:
    """Tell whether each row of a state is one run of memory."""
    return array.size == 0 or array.strides[0] * len(array) == array.nbytes


def _positions(program: Program, memory: StateMemory) -> Sequence[int]:
    """Return the position of each row; zeros if the program has no position."""
    if program.position is None:
        return [0] * count_rows(program, memory.sizes)
    return memory.position()


def _written(memory: StateMemory) -> Sequence[Kind]:
    """Return the states that methods write; all other states never change."""
    return [kind for kind in memory.kinds if kind.group.writers]


def _check_row(
    program: Program, memory: StateMemory, method: str, name: str, row: object
) -> int:
    """Return the index of a row in a session whose rows are independent.

    Raises:
        BadSetting: there is no such row.
        StateMismatch: a state, or the position, is shared by all rows.
        Poisoned: an earlier call failed and left states partly written.
    """
    memory.check_usable()
    independent, expected = row_dim(program) is not None, "rows of its own"
    problems = [
        (kind.group.first.name, kind.row_problem())
        for kind in _written(memory)
        if independent or kind.grows
    ]
    problems += [
        ("position" if number == 0 else cursor.name, _row_problem(program, number))
        for number, cursor in enumerate(program.cursors)
    ]
    if not independent:
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
    """Return why the rows at a cursor are not independent, "" if they are."""
    own = row_dim(program, number) == row_dim(program)
    return why_together(program, number) or ("" if own else "rows of another batch")


def _check_shape(method: str, mine: Kind, theirs: Kind) -> None:
    """Check that a row of a source session fits into a target session.

    Raises:
        StateMismatch: the rows have different shapes.
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
    """Set the position of a row that has changed, and mark the states as complete.

    Only positions that the session counts are set. `positions` has the new position of
    the row at each cursor.
    """
    for number, cursor in enumerate(program.cursors):
        if cursor.kind is CursorKind.SESSION:
            counted = list(memory.counted[number])
            counted[row] = positions[number]
            memory.count(number, tuple(counted))
    memory.settle()
