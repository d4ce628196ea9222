"""The owner of the memory of a session's states: the interface that kinds use.

In: groups of states that a session handles together: same kind, type and initial
content, written by the same methods; layers usually differ only in name. Spans of their
rows and slots. Out: their content, copied in and out. The host's arenas are one owner
(`host.py`); a delegate with memory of its own may be another, and only its own
partitions read that memory.

An owner executes operations in order. All but `read` and `clone` may return before the
work is done; `synchronise` waits.
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
        states: their ids, ascending.
        declared: their declarations.
        writers: the names of the methods that write them.
        has_rows: whether axis 0 is a batch axis whose rows have slots of their own.
    """

    states: tuple[int, ...]
    declared: tuple[State, ...]
    writers: frozenset[str]
    has_rows: bool

    @property
    def first(self) -> State:
        """Return the first declaration, for the properties that all states share."""
        return self.declared[0]


def group_states(
    states: Sequence[State],
    methods: Sequence[Method] = (),
    rows: Sequence[Dim | None] = (),
) -> tuple[Group, ...]:
    """Return groups in the order of their first states.

    Args:
        states: the states as the program declares them.
        methods: the methods of the program.
        rows: for each cursor the size of a batch, None if unknown; states without a
            cursor use the first one.
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
    """Tell whether axis 0 of a state is the batch of its cursor."""
    own = rows[state.cursor or 0] if rows else None
    return own is not None and state.axis != 0 and own in state.type.dims[:1]


ALL_SLOTS: Final = 1 << 62
InitialValue = Callable[[int], Array]  # maps a constant's number to its array


class Span(NamedTuple):
    """A range of slots of the states of a store.

    Attributes:
        low: the first slot; less than 0 means 0.
        high: the slot after the last; greater than the slot count means all.
        row: the index on axis 0; None for all rows.
        state: the index among the states of the store; None for all of them.
    """

    low: int = 0
    high: int = ALL_SLOTS
    row: int | None = None
    state: int | None = None


WHOLE: Final = Span()


class StateBuffer:
    """The memory of one state whose owner is not the host.

    Owners derive their own class from this one.

    Attributes:
        owner: the owner of the memory.
    """

    __slots__ = ("owner",)

    def __init__(self, owner: "Owner") -> None:
        self.owner = owner


Buffer = Array | StateBuffer


class Store(Protocol):
    """The memory of a group of states: of one shape, [rows, ...] with slots.

    Attributes:
        shape: the shape of each state.
        slots: the slots of each state; 0 without a sequence axis.
        shared: whether the store has been cloned, or is a clone.
        buffers: the memory of each state, for the owner's kernels: arrays on the host.
    """

    shape: tuple[int, ...]
    slots: int
    shared: bool
    buffers: Sequence[Buffer]

    def read(self, span: Span = WHOLE, part: Part = ()) -> Array:
        """Return a copy of a span's content, or of a part of it.

        The content has the shape [states, *shape], or the state's shape if the span
        names a state; a named row stays as an axis of size 1.
        """

    def write(self, span: Span, content: Array, part: Part = ()) -> None:
        """Write content of the shape that `read` returns for the same span and part."""

    def fill(self, span: Span) -> None:
        """Restore the initial content of a span."""

    def give_back(self, span: Span) -> None:
        """Free whole pages within a span that holds its initial content."""

    def note(self, low: int = 0, high: int = ALL_SLOTS) -> None:
        """Record, for the next clone, that a call may write these slots."""

    def first(self, state: int) -> Array:
        """Return a copy of the initial value of a state."""


class Owner(Protocol):
    """The owner of the memory of a session's states.

    Attributes:
        arenas: the host arenas of the states, by reset rule; empty if the states lie
            elsewhere.
    """

    arenas: Mapping[ResetRule, Arena]

    @property
    def stores(self) -> Sequence[Store]:
        """Return the stores, in the order of their groups."""

    def clone(self, held: Sequence[int]) -> "Owner":
        """Return memory with the same content.

        Args:
            held: for each store, an upper bound of the first slots whose content may
                differ from the initial content.

        Raises:
            OutOfMemory: there is not enough memory.
        """

    def discard(self, rule: ResetRule) -> None:
        """Free the memory of states with a reset rule; restore initial values."""

    def synchronise(self) -> None:
        """Wait until all work on the states is done, of this owner and of partitions.

        Raises:
            KvcError: an error of work that was pending.
        """

    def close(self) -> None:
        """Release the memory."""
