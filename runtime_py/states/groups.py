"""Group states that a session handles together; layers usually differ only in name.

In: the states and methods of a program. Out: groups with the same kind, type and
initial content, written by the same methods. They are the same for all sessions.
"""

from collections.abc import Sequence

from kvc.schema.frozen import frozen
from kvc.schema.model import Method, State
from kvc.schema.types import Dim


@frozen
class Group:
    """States that are alike.

    Attributes:
        states: their ids, ascending.
        declared: each of them.
        writers: names of the methods that write them.
        has_rows: whether axis 0 is the rows of a batch, which have slots of their own.
    """

    states: tuple[int, ...]
    declared: tuple[State, ...]
    writers: frozenset[str]
    has_rows: bool

    @property
    def first(self) -> State:
        """Return the first of them, for what they have in common."""
        return self.declared[0]


def group_states(
    states: Sequence[State],
    methods: Sequence[Method] = (),
    rows: Sequence[Dim | None] = (),
) -> tuple[Group, ...]:
    """Return groups in the order of their first states.

    Args:
        states: as the program declares them.
        methods: of the program.
        rows: for each cursor the size of a batch, None where nothing says it; the
            first one's is that of states at none, too.
    """
    writers: list[list[str]] = [[] for _ in states]
    for method in methods:
        for number in method.writes:
            writers[number].append(method.name)
    groups: dict[object, list[int]] = {}
    for i, state in enumerate(states):
        begins = state.initial is None
        key = (
            state.type,
            state.layout,
            (state.kind, state.axis, state.cursor, state.window),
            (state.reset, begins, tuple(writers[i])),
        )
        groups.setdefault(key, []).append(i)
    return tuple(
        Group(
            tuple(ids),
            tuple(states[i] for i in ids),
            frozenset(writers[ids[0]]),
            _has_rows(states[ids[0]], rows),
        )
        for ids in groups.values()
    )


def _has_rows(state: State, rows: Sequence[Dim | None]) -> bool:
    """Tell whether axis 0 of a state is the rows of its cursor."""
    own = rows[state.cursor or 0] if rows else None
    return own is not None and state.axis != 0 and own in state.type.dims[:1]
