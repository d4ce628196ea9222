"""Select the sizes of a session's states, its rows, and its capacity.

In: a program, the sizes that a caller requests. Out: a size for each symbol of states,
the capacity (how many tokens a row can hold), the number of rows of each cursor, and
whether the rows are independent.
"""

from collections.abc import Mapping

import numpy as np

from kvc.runtime.states.linear import Linear
from kvc.runtime.states.table import kind_of
from kvc.schema.errors import (
    BadSetting,
    UnknownName,
)
from kvc.schema.graph import CursorField, CursorSlot
from kvc.schema.model import CursorKind, Method, Program
from kvc.schema.types import Dim, affine, evaluate, symbols_in, symbols_of

_CAPACITY, _BATCH = "capacity", "batch"


def count_rows(program: Program, sizes: Mapping[str, int], number: int = 0) -> int:
    """Return the number of rows of a cursor, given the sizes of symbols.

    `number` is the index of the cursor; cursor 0 counts the session's position.
    """
    cursor = program.cursors[number] if number < len(program.cursors) else None
    counted = cursor is not None and cursor.kind is CursorKind.SESSION
    if counted and cursor is not None and cursor.rows is not None:
        return evaluate(cursor.rows, sizes)
    if _BATCH in sizes:
        return sizes[_BATCH]
    if counted:
        return 1
    for state in program.states:
        if kind_of(state).grows and state.axis != 0:
            return evaluate(state.type.dims[0], sizes)
    return 1


def row_dims(program: Program) -> list[Dim | None]:
    """Return `row_dim` of each cursor; of a program without cursors, a single dim."""
    return [row_dim(program, n) for n in range(max(1, len(program.cursors)))]


def row_dim(program: Program, number: int = 0) -> Dim | None:
    """Return the number of rows of a cursor, as a dim.

    States that have a row for each row of the cursor have this dim on axis 0. The
    result is None if the dim is unknown, for example if all rows share one position.
    """
    cursor = program.cursors[number] if program.cursors else None
    if cursor is not None and cursor.state is not None:
        dims = program.states[cursor.state].type.dims
        return dims[0] if dims else None
    if cursor is not None and cursor.rows is not None:
        return cursor.rows
    batch = _BATCH in symbols_in(state.type for state in program.states)
    return affine(0, {_BATCH: 1}) if batch else None


def takes_one_position(method: Method, program: Program, cursor: int) -> bool:
    """Tell whether a method takes one position of a cursor for all rows."""
    slots = [(v.type.dims, v.storage) for v in method.graph.values]
    counted = program.cursors[cursor]
    rows: tuple[Dim, ...] | None = None
    if counted.rows is not None:
        rows = (counted.rows,)
    if counted.state is not None:  # its shape may be that of one row
        rows = program.states[counted.state].type.dims
    return any(
        rows is None
        or slot.field is CursorField.PLACES
        or (slot.field is CursorField.START and dims in ((), (1,)) and dims != rows)
        for dims, slot in slots
        if isinstance(slot, CursorSlot) and slot.cursor == cursor
    )


def choose_sizes(
    program: Program, wanted: Mapping[str, int], capacity: int | None = None
) -> dict[str, int]:
    """Return the size of each symbol that states use.

    For a symbol with buckets, the size is the smallest bucket that is not less than the
    requested size. The requested row count must be exactly a bucket, since every row
    takes part in each call.

    Raises:
        UnknownName: `wanted` names a symbol that no state uses.
        BadSetting: a size is out of its bounds, or no bucket has that row count.
    """
    used = symbols_in(state.type for state in program.states)
    free = {symbol.name: symbol for symbol in program.symbols if symbol.name in used}
    for name in wanted:
        if name not in free:
            hint = "; declare it by a StateSpec to let sessions set it"
            known = tuple(free)
            raise UnknownName(kind="session size", name=name, known=known, hint=hint)
    named = capacity_symbol(program)
    if capacity is not None and named is not None:
        if named in wanted:
            expected = f"one size; {named} is the capacity of the position"
            found = f"{capacity}, and {named}={wanted[named]}"
            raise BadSetting(name=_CAPACITY, expected=expected, found=found)
        wanted = {**wanted, named: capacity}
    sizes = {}
    for name, symbol in free.items():
        most = symbol.greatest
        default = max(1, symbol.lower) if name == _BATCH else most
        size = whole_number(name, wanted.get(name, default))
        least = max(1, symbol.lower) if name == named else symbol.lower
        if not least <= size <= most:
            buckets = f", for the buckets {symbol.allowed}" if symbol.sizes else ""
            expected = f"{least}..{most}{buckets}"
            raise BadSetting(name=name, expected=expected, found=size)
        if name == _BATCH and name in wanted and not symbol.takes(size):
            raise BadSetting(name=name, expected=symbol.allowed, found=size)
        sizes[name] = min((n for n in symbol.sizes if n >= size), default=size)
    return sizes


def capacity_symbol(program: Program) -> str | None:
    """Return the symbol that limits the positions of a session, None without one.

    The symbol is the one called "capacity". If no state uses a symbol of that name, it
    is the symbol that is the slot count of the caches of cursor 0.
    """
    used = symbols_in(state.type for state in program.states)
    if _CAPACITY in used:
        return _CAPACITY
    limit = program.cursors[0].capacity if program.cursors else None
    names = sorted(used & symbols_of([] if limit is None else [limit]))
    return names[0] if names and limit == affine(0, {names[0]: 1}) else None


def choose_capacity(
    program: Program, sizes: Mapping[str, int], capacity: int | None
) -> int | None:
    """Return how many tokens a row of a session can hold, None if there is no limit.

    Args:
        program: the program of the session.
        sizes: the size of each symbol that states use; the size of the
            `capacity_symbol`, if the program has one, already includes `capacity`.
        capacity: the capacity that the caller requested, None for the greatest.

    Raises:
        UnknownName: the program has neither a position nor a `capacity_symbol`.
        BadSetting: the capacity is out of its bounds.
    """
    position, sized = program.position, capacity_symbol(program) is not None
    if position is None:
        if capacity is not None and not sized:
            raise UnknownName(kind="session size", name=_CAPACITY, known=tuple(sizes))
        return sizes.get(_CAPACITY)
    limit = position_limit(program, sizes)
    if capacity is None or sized:
        return limit if limit is not None else capacity
    if whole_number(_CAPACITY, capacity) < 1 or (
        limit is not None and capacity > limit
    ):
        expected = "1 or more" if limit is None else f"1..{limit}"
        raise BadSetting(name=_CAPACITY, expected=expected, found=capacity)
    return capacity


def position_limit(program: Program, sizes: Mapping[str, int]) -> int | None:
    """Return the greatest position: the slot count of the smallest cache.

    Returns None if no cache or cursor limits the position.
    """
    slots = {
        state.type.dims[state.axis]
        for state in program.states
        if state.cursor == 0 and state.axis is not None and kind_of(state) is Linear
    }
    limits = {program.cursors[0].capacity, *slots} - {None}
    known = [evaluate(dim, sizes) for dim in limits if dim is not None]
    return min(known, default=None)


def whole_number(name: str, size: object) -> int:
    """Return a size that a caller gave, checked to be an int.

    Raises:
        BadSetting: the size is not an int.
    """
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise BadSetting(name=name, expected="an int", found=repr(size))
    return int(size)
