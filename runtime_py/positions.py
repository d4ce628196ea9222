"""The position of a session: how many tokens it holds, in each row of a batch.

In: what a program declares as its position, the memory of a session. Out: the position,
how many rows it has, the greatest it may be, and what a method's input of it must hold.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.arrays import Array
from kvc.runtime.states.memory import StateMemory
from kvc.runtime.states.table import kind_of
from kvc.schema.errors import (
    BadSetting,
    NoPosition,
    StateMismatch,
    UnknownName,
    listing,
)
from kvc.schema.feeds import Feed, feed_of, position_input
from kvc.schema.model import Method, Position, PositionKind, Program
from kvc.schema.types import Dim, affine, evaluate, symbols_in, symbols_of

_CAPACITY, _BATCH = "capacity", "batch"


def find_position(position: Position | None, memory: StateMemory) -> list[int]:
    """Return the position of each row.

    Raises:
        NoPosition: nothing counts tokens, or what grows does not agree.
    """
    if position is None:
        raise NoPosition(reason="no state of this program counts tokens")
    match position.kind:
        case PositionKind.STATE:
            assert position.state is not None
            counts: list[int] = memory.arrays[position.state].reshape(-1).tolist()
            return counts
        case PositionKind.INPUT:
            return list(memory.counted)
        case PositionKind.LENGTH:
            return [_common_length(memory)] * len(memory.counted)


def known_position(position: Position | None, memory: StateMemory) -> list[int] | None:
    """Return the position of each row, None where nothing counts."""
    try:
        return find_position(position, memory)
    except NoPosition:
        return None


def count_rows(program: Program, sizes: Mapping[str, int]) -> int:
    """Return how many rows a position has that no state holds."""
    if _BATCH in sizes:
        return sizes[_BATCH]
    position = program.position
    if position is not None and position.kind is PositionKind.INPUT:
        return max((_rows_fed(m, program, sizes) for m in program.methods), default=1)
    for state in program.states:
        if kind_of(state).grows and state.axis != 0:
            return evaluate(state.type.dims[0], sizes)
    return 1


def row_dim(program: Program) -> Dim | None:
    """Return the size of axis 0 of states with a row for each row of the position.

    None where nothing says it, as with one position for all rows.
    """
    position = program.position
    if position is not None and position.state is not None:
        dims = program.states[position.state].type.dims
        return dims[0] if dims else None
    fed = (_dim_fed(method, program) for method in program.methods)
    batch = _BATCH in symbols_in(state.type for state in program.states)
    return next(
        (dim for dim in fed if dim is not None),
        affine(0, {_BATCH: 1}) if batch else None,
    )


def fill_feed(slot: Array, starts: Sequence[int], method: str, feed: Feed) -> None:
    """Fill a method's input of the position: int64 [], [batch], or [tokens].

    Raises:
        StateMismatch: it takes one position, and the rows have several.
    """
    if feed is Feed.ROWS and slot.size == len(starts):
        slot[...] = np.array(starts)
        return
    if len(set(starts)) > 1:
        raise StateMismatch(
            method=method,
            state="position",
            expected="one position for all rows",
            found=listing([str(start) for start in starts]),
        )
    slot[...] = starts[0] + (np.arange(slot.size) if feed is Feed.PLACES else 0)


def choose_sizes(
    program: Program, wanted: Mapping[str, int], capacity: int | None = None
) -> dict[str, int]:
    """Return the size of each symbol that states use.

    Raises:
        UnknownName: `wanted` names another one.
        BadSetting: a size is out of its bounds.
    """
    used = symbols_in(state.type for state in program.states)
    free = {symbol.name: symbol for symbol in program.symbols if symbol.name in used}
    for name in wanted:
        if name not in free:
            raise UnknownName(kind="session size", name=name, known=tuple(free))
    if capacity is not None and _CAPACITY in free:
        wanted = {**wanted, _CAPACITY: capacity}
    sizes = {}
    for name, symbol in free.items():
        default = max(1, symbol.lower) if name == _BATCH else symbol.upper
        size = _whole(name, wanted.get(name, default))
        least = max(1, symbol.lower) if name == _CAPACITY else symbol.lower
        if not least <= size <= symbol.upper:
            expected = f"{least}..{symbol.upper}"
            raise BadSetting(name=name, expected=expected, found=size)
        sizes[name] = size
    return sizes


def choose_capacity(
    program: Program, sizes: Mapping[str, int], capacity: int | None
) -> int | None:
    """Return the greatest position of a session, None where nothing limits it.

    Args:
        program: what the session is of.
        sizes: of the symbols that states use; one called "capacity" follows `capacity`.
        capacity: what the caller asked for, None for the greatest there is.

    Raises:
        UnknownName: the program has neither a position nor such a symbol.
        BadSetting: it is out of its bounds.
    """
    position, sized = program.position, _CAPACITY in sizes
    if position is None:
        if capacity is not None and not sized:
            known = tuple(sizes)
            raise UnknownName(kind="session size", name=_CAPACITY, known=known)
        return sizes.get(_CAPACITY)
    limit = _limit(position, sizes)
    if capacity is None or sized:
        return limit if limit is not None else capacity
    if _whole(_CAPACITY, capacity) < 1 or (limit is not None and capacity > limit):
        expected = "1 or more" if limit is None else f"1..{limit}"
        raise BadSetting(name=_CAPACITY, expected=expected, found=capacity)
    return capacity


def _limit(position: Position, sizes: Mapping[str, int]) -> int | None:
    return None if position.capacity is None else evaluate(position.capacity, sizes)


def _whole(name: str, size: object) -> int:
    """Return a size that a caller gave.

    Raises:
        BadSetting: it is no int.
    """
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise BadSetting(name=name, expected="an int", found=repr(size))
    return int(size)


def _common_length(memory: StateMemory) -> int:
    lengths = list(map(memory.lengths.__getitem__, memory.growing))
    if len(set(lengths)) > 1:
        names = [memory.states[state].name for state in memory.growing]
        found = [f"{name} has {n}" for name, n in zip(names, lengths, strict=True)]
        reason = f"what grows has different lengths: {listing(found)}"
        raise NoPosition(reason=reason)
    return lengths[0] if lengths else 0


def _rows_fed(method: Method, program: Program, sizes: Mapping[str, int]) -> int:
    """Return the rows of a method's input of the position, 1 where it has none."""
    dim = _dim_fed(method, program)
    known = dim is not None and symbols_of([dim]) <= sizes.keys()
    return evaluate(dim, sizes) if dim is not None and known else 1


def _dim_fed(method: Method, program: Program) -> Dim | None:
    """Return the size of a method's input of the position, if it has one a row."""
    if feed_of(method, program.position, program.states) is not Feed.ROWS:
        return None
    index = position_input(method, program.position)
    assert index is not None
    return method.graph.values[method.graph.inputs[index]].type.dims[0]
