"""The owner of the memory of a session's states: the interface that kinds use.

In: states in groups, which a session handles together: those of one kind, type and
initial content that the same methods write; layers usually differ only in name. Spans
of their rows and slots. Out: their content, copied in and out. The host's arenas are
one owner (`host.py`); a delegate with memory of its own may be another, and only its
own partitions look into that memory.

An owner works in the order in which it is asked. Everything but `read` and `clone` may
return before the work is done; `synchronise` waits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, Part
from kvc.schema.frozen import frozen
from kvc.schema.model import Method, ResetRule, State
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


ALL_SLOTS: Final = 1 << 62
InitialValue = Callable[[int], Array]  # by the number of named data


class Span(NamedTuple):
    """Slots of the states of a store.

    Attributes:
        low: the first slot; less than 0 means 0.
        high: the one after the last; more than there are means all.
        row: index on axis 0; None for all rows.
        state: index among the states of the store; None for all of them.
    """

    low: int = 0
    high: int = ALL_SLOTS
    row: int | None = None
    state: int | None = None


WHOLE: Final = Span()


class StateBuffer:
    """All the memory of one state, where its owner is not the host.

    What it is, the owner's own class says, which derives from this one.

    Attributes:
        owner: who has it.
    """

    __slots__ = ("owner",)

    def __init__(self, owner: "Owner") -> None:
        self.owner = owner


Buffer = Array | StateBuffer


class Store(Protocol):
    """The memory of states that are alike: of one shape, [rows, ...] with slots.

    Attributes:
        shape: of each.
        slots: how many slots each has; 0 where they have no sequence axis.
        shared: whether it has been cloned, or is a clone.
        buffers: the memory of each, for those who compute in it: arrays on the host.
    """

    shape: tuple[int, ...]
    slots: int
    shared: bool
    buffers: Sequence[Buffer]

    def read(self, span: Span = WHOLE, part: Part = ()) -> Array:
        """Return a copy of what a span holds, or of a part of that.

        What a span holds is of shape [states, *shape], or as the state is shaped where
        the span names one; a row that is named stays as an axis of 1.
        """

    def write(self, span: Span, content: Array, part: Part = ()) -> None:
        """Write what `read` of a span of that shape, and a part, has returned."""

    def fill(self, span: Span) -> None:
        """Give a span its initial content again."""

    def give_back(self, span: Span) -> None:
        """Give back whole pages within a span, which holds its initial content."""

    def note(self, low: int = 0, high: int = ALL_SLOTS) -> None:
        """Note that a call may write slots; for the next clone."""

    def first(self, state: int) -> Array:
        """Return a copy of what one of the states begins as."""


class Owner(Protocol):
    """Who has the memory of states of a session.

    Attributes:
        arenas: where they lie on the host, by what a reset does to them; empty where
            they do not.
    """

    arenas: Mapping[ResetRule, Arena]

    @property
    def stores(self) -> Sequence[Store]:
        """Return those of the states that are alike, in the order of their groups."""

    def clone(self, held: Sequence[int]) -> "Owner":
        """Return memory with the same content.

        Args:
            held: for each store, how many slots, the first, may not hold their initial
                content; there may be less.

        Raises:
            OutOfMemory: there is no memory.
        """

    def discard(self, rule: ResetRule) -> None:
        """Give all memory of states with a reset rule back; they begin anew."""

    def synchronise(self) -> None:
        """Wait until nothing is under way, neither here nor in partitions.

        Raises what has gone wrong since the last time.
        """

    def close(self) -> None:
        """Let go of the memory."""
