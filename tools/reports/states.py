"""The states: memory that outlives a call, which methods read it and which write it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvc.schema.families import NUMBER, families, pattern_of
from kvc.schema.model import Program, State
from kvc.schema.rings import Window
from kvc.schema.text import columns, escape, plural, size
from kvc.schema.types import Symbol, bounds


@dataclass(frozen=True, slots=True)
class StateReport:
    """A state; `nbytes` with every size at its upper bound, for one session.

    Attributes:
        initial: the named data it starts as, "zeros" otherwise.
        reads, writes: methods that do.
        at_position: whether every write begins at the position.
        window: of a ring, what a query sees; None where that is open.
    """

    name: str
    type: str
    nbytes: int
    kind: str
    axis: int | None
    initial: str
    reset: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    at_position: bool
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class PositionReport:
    """Where the program's position comes from.

    Attributes:
        capacity: the greatest position, with every size the greatest that it has; None
            where nothing limits it.
        chosen: the size that a session chooses and that limits it, "" for a fixed one.
    """

    kind: str
    source: str
    capacity: int | None
    chosen: str


def describe_states(program: Program) -> tuple[StateReport, ...]:
    """Return a report on each state, in the order of the file."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    return tuple(
        _describe(program, index, state, symbols)
        for index, state in enumerate(program.states)
    )


def _describe(
    program: Program, index: int, state: State, symbols: Mapping[str, Symbol]
) -> StateReport:
    initial = state.initial
    return StateReport(
        name=state.name,
        type=str(state.type),
        nbytes=state.type.max_nbytes(symbols),
        kind=state.kind.name.lower(),
        axis=state.axis,
        initial="zeros" if initial is None else program.names[initial].name,
        reset=state.reset.name.lower(),
        reads=tuple(m.name for m in program.methods if index in m.reads),
        writes=tuple(m.name for m in program.methods if index in m.writes),
        at_position=state.at_position,
        window=state.window,
    )


def describe_position(program: Program) -> PositionReport | None:
    """Return where the position comes from, None when the program has none."""
    position = program.position
    if position is None:
        return None
    source = position.name
    kind, limit = position.kind.name.lower(), position.capacity
    if limit is None:
        return PositionReport(kind, source, None, "")
    symbols = {one.name: replace(one, upper=one.greatest) for one in program.symbols}
    chosen = "" if isinstance(limit, int) else str(limit)
    return PositionReport(kind, source, bounds(limit, symbols)[1], chosen)


def state_lines(states: Sequence[StateReport], full: bool) -> list[str]:
    """Lay out states, in exact bytes.

    Args:
        states: of a program.
        full: whether each has a line of its own, also where those of equal layers
            differ only in a number.
    """
    groups = [(s.name, [s]) for s in states] if full else _families(states)
    rows = [_row(escape(pattern), group) for pattern, group in groups]
    title = ("state", "type", "kind, axis", "bytes", "used by", "starts as")
    return columns([title, *rows], "<<<>") if rows else ["  none"]


def state_family_lines(states: Sequence[StateReport]) -> list[str]:
    """Lay out states that differ only in a number on one line together."""
    rows = [_family_row(escape(pattern), group) for pattern, group in _families(states)]
    return columns(rows, "<<<>")


def _families(states: Sequence[StateReport]) -> list[tuple[str, list[StateReport]]]:
    return families(
        states,
        name=lambda s: s.name,
        like=lambda s: (
            s.type,
            s.kind,
            s.window,
            s.axis,
            s.reads,
            s.writes,
            NUMBER.sub("#", s.initial),
        ),
    )


def _family_row(pattern: str, group: Sequence[StateReport]) -> tuple[str, ...]:
    one = group[0]
    kind = one.kind if one.window is None else f"{one.kind}, window {one.window}"
    return pattern, one.type, kind, _sizes(group), _used_by(one)


def _sizes(group: Sequence[StateReport]) -> str:
    one = size(group[0].nbytes)
    return one if len(group) == 1 else f"{len(group)} x {one}"


def _row(name: str, group: Sequence[StateReport]) -> tuple[str, ...]:
    state, times = group[0], f"{len(group)} x " * (len(group) > 1)
    kind = state.kind if state.axis is None else f"{state.kind}, {state.axis}"
    if state.window is not None:
        kind += f", window {state.window}"
    initial = escape(pattern_of([one.initial for one in group]))
    nbytes = f"{times}{state.nbytes:,}"
    return name, state.type, kind, nbytes, _used_by(state), initial


def _used_by(state: StateReport) -> str:
    users = dict.fromkeys((*state.reads, *state.writes))
    used = ", ".join(f"{escape(user)} {_access(state, user)}" for user in users)
    return used or "nobody"


def _access(state: StateReport, user: str) -> str:
    return ("r" if user in state.reads else "") + ("w" if user in state.writes else "")


def position_line(position: PositionReport | None) -> str:
    """Say in one line where the position comes from."""
    if position is None:
        return "  position: none; nothing in this program counts tokens"
    source = {
        "state": f"counted by the state {escape(position.source)}",
        "input": f"the input {escape(position.source)}, filled by the session",
        "length": "the common length of the states that grow",
    }[position.kind]
    capacity = position.capacity
    if capacity is None:
        return f"  position: {source}; no limit"
    chosen = f" ({escape(position.chosen)})" if position.chosen else ""
    return f"  position: {source}; at most {plural(capacity, 'token')}{chosen}"
