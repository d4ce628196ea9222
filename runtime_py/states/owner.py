"""The owner of the memory of a session's states: the interface that kinds use.

In: groups of states that a session handles together, since they have the same kind,
type and initial content and are written by the same methods (usually the states of a
model's layers); spans of the rows and slots of a group. Out: the content of a span,
copied in and out. The host's arenas are an owner (`host.py`). A backend with separate
memory can be an owner too; only partitions of that backend then read the memory.

An owner executes operations in order. All operations except `read` and `clone` may
return before their work is done; `synchronise` waits for that work.
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
    """A group of similar states.

    Attributes:
        states: the ids of the states, ascending.
        declared: the declarations of the states.
        writers: the names of the methods that write the states.
        has_rows: whether axis 0 of the states is a batch axis, with separate slots for
            each row.
    """

    states: tuple[int, ...]
    declared: tuple[State, ...]
    writers: frozenset[str]
    has_rows: bool

    @property
    def first(self) -> State:
        """Return the declaration of the first state, for properties common to all."""
        return self.declared[0]


def group_states(
    states: Sequence[State],
    methods: Sequence[Method] = (),
    rows: Sequence[Dim | None] = (),
) -> tuple[Group, ...]:
    """Group similar states; return the groups in the order of their first states.

    Args:
        states: the states as the program declares them.
        methods: the methods of the program.
        rows: for each cursor the number of rows, None if the number is unknown. States
            without a cursor have the rows of the first cursor.
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
    """Tell whether axis 0 of a state is the batch axis of the state's cursor."""
    own = rows[state.cursor or 0] if rows else None
    return own is not None and state.axis != 0 and own in state.type.dims[:1]


ALL_SLOTS: Final = 1 << 62
InitialValue = Callable[[int], Array]  # maps a constant's number to its array


class Span(NamedTuple):
    """A range of slots of the states of a store.

    Attributes:
        low: the first slot; less than 0 means 0.
        high: the slot after the last; if greater than the slot count, the span ends
            with the last slot.
        row: the index on axis 0; None for all rows.
        state: the index of the state in the store; None for all states of the store.
    """

    low: int = 0
    high: int = ALL_SLOTS
    row: int | None = None
    state: int | None = None


WHOLE: Final = Span()


class StateBuffer:
    """The memory of a state whose owner is not the host.

    An owner defines a subclass for its kind of memory.

    Attributes:
        owner: the owner of the memory.
    """

    __slots__ = ("owner",)

    def __init__(self, owner: "Owner") -> None:
        self.owner = owner


Buffer = Array | StateBuffer


class Store(Protocol):
    """The memory of a group of states, which have the same shape.

    Attributes:
        shape: the shape of each state.
        slots: the number of slots of each state; 0 without a sequence axis.
        shared: whether the store has been cloned, or is a clone.
        buffers: the memory of each state, as the owner's kernels take it: on the host,
            arrays.
    """

    shape: tuple[int, ...]
    slots: int
    shared: bool
    buffers: Sequence[Buffer]

    def read(self, span: Span = WHOLE, part: Part = ()) -> Array:
        """Return a copy of a span's content, or of a part of it.

        The content has the shape [states, *shape], where the axis of slots has the
        length of the span. If the span names a state, the axis of states is left out.
        If the span names a row, the axis of rows has the size 1.
        """

    def write(self, span: Span, content: Array, part: Part = ()) -> None:
        """Write content, whose shape is that of `read` for the same span and part."""

    def copy_row(self, span: Span, other: "Store", row: int) -> None:
        """Copy a span of one row from a row of another store, or of this one.

        The states have the same shapes, but for the number of rows.
        """

    def fill(self, span: Span) -> None:
        """Restore the initial content of a span."""

    def give_back(self, span: Span) -> None:
        """Free the whole pages within a span, which must have initial content."""

    def note(self, low: int = 0, high: int = ALL_SLOTS) -> None:
        """Note that a call may write slots `low` to `high`, which a clone must copy."""

    def first(self, state: int) -> Array:
        """Return a copy of the initial value of a state."""


class Owner(Protocol):
    """The owner of the memory of a session's states.

    Attributes:
        arenas: reset rule (whether a reset clears a state or keeps it) -> the host
            arena of the states with that rule; empty if the states are not in host
            memory.
    """

    arenas: Mapping[ResetRule, Arena]

    @property
    def stores(self) -> Sequence[Store]:
        """Return the stores of the groups, in the order of the groups."""

    def clone(self, held: Sequence[int]) -> "Owner":
        """Return an owner of new memory with the same content.

        Args:
            held: for each store, an upper bound of the first slots whose content may
                differ from the initial content.

        Raises:
            OutOfMemory: there is not enough memory.
        """

    def discard(self, rule: ResetRule) -> None:
        """Free the memory of states with a given reset rule; restore initial values."""

    def synchronise(self) -> None:
        """Wait until the owner and its partitions have done all work on the states.

        Raises:
            KvcError: work that had not been done yet has failed.
        """

    def close(self) -> None:
        """Release the memory."""
