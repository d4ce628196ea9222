"""What a session asks of states of one kind: the interface of all kinds.

In: where each row of the session stands, what a call asks for. Out: what undoes the
call, how far rows go back, which slots a fork or a file must have, what becomes of one
row. A kind keeps what it has to know beside the content, and finds no position by
itself. What is said here holds for a state that nothing is known of, as `plain.py` has
them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import ClassVar

from kvc.runtime.states.access import Mode, Writes
from kvc.runtime.states.groups import Group
from kvc.runtime.states.owner import ALL_SLOTS, WHOLE, Span, Store
from kvc.schema.errors import CannotRewind, NotRewindable
from kvc.schema.model import State

Undo = Callable[[], None]  # puts back what a call may have written, once


@dataclass(frozen=True, slots=True)
class Call:
    """What one call asks of the states that it writes.

    Attributes:
        starts: the position of each row before it; None where nothing counts.
        steps: tokens that it adds to each row.
        counts: how many tokens of each row count, None where all do.
        lengths: of each state that grows: (state, length after the call, greatest
            length on the way).
        keeps: whether what cannot be undone is to be copied first.
    """

    starts: Sequence[int] | None
    steps: Sequence[int]
    counts: Sequence[int] | None
    lengths: Sequence[tuple[int, int, int]]
    keeps: bool

    def ends(self, extent: int) -> list[int]:
        """Return where what each row may write from its start on ends.

        All slots, without a position. `extent`: how many slots a write takes.
        """
        if self.starts is None:
            return [ALL_SLOTS]
        if self.counts is None or extent == ALL_SLOTS:
            return [start + extent for start in self.starts]
        return list(map(add, self.starts, self.counts))


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a call may be for a state, as its errors say it.

    Attributes:
        name: of the state.
        longest: how many tokens a call may add.
        slots: of the state.
        window: how many positions a query sees, its own among them.
    """

    name: str
    longest: int
    slots: int
    window: int


@dataclass(slots=True)
class Marks:
    """How far states have been written: what a file says beside their content.

    Attributes:
        lengths: of the states that grow, 0 for others; by state id.
        written: slots from here on hold what they held at first, where slots after the
            position are dead.
        reached: the furthest position that each row was ever written up to, where
            states go round; empty where none do.
    """

    lengths: Sequence[int]
    written: int = 0
    reached: list[int] = field(default_factory=list)


class Kind:
    """States of a session that are alike; compared and hashed by identity.

    Attributes:
        group: which they are.
        store: their memory.
    """

    undoes: ClassVar[frozenset[Mode]] = frozenset()  # without a copy
    grows: ClassVar[bool] = False  # whether they have lengths
    goes_round: ClassVar[bool] = False  # whether `Marks.reached` is for them
    placed: ClassVar[bool] = False  # whether the position says what a call writes

    def __init__(self, group: Group, store: Store, lengths: list[int]) -> None:
        """Take new memory; `lengths` are those of all states of the session."""
        self.group, self.store, self.lengths = group, store, lengths

    @classmethod
    def takes(cls, state: State) -> bool:
        """Tell whether a state is of this kind; the first in the table has it."""
        raise NotImplementedError

    # What a call may do, and how it is undone.

    def limit(self) -> Limit | None:
        """Return how long a call may be, None where they do not care."""
        return None

    def room(self, capacity: int | None, counts: bool) -> int:
        """Return how long they may become, if they grow.

        `counts`: whether their length is the position, of at most `capacity`.
        """
        raise NotImplementedError

    def begin(self, writes: Writes, extent: int, call: Call) -> Undo | None:
        """Note what a call of a method may write, before it does.

        Args:
            writes: of the method, in these states.
            extent: the most slots that one of them takes from the position on.
            call: what it asks for.

        Returns:
            What puts it back, as far as `lost` says; None where nothing need be.
        """
        if self.store.shared:
            self.store.note()
        return self._copy() if call.keeps else None

    def lost(self, writes: Writes, last: int, call: Call) -> bool:
        """Tell whether a call, once undone, has left them half written.

        `last`: index of the last instruction that may have written, -1 for none.
        """
        unknown = self.placed and call.starts is None and last >= 0
        return unknown or any(risk.instruction <= last for risk in writes.risks)

    def hold(self, risks: bool, starts: Sequence[int]) -> Undo:
        """Return what brings everything back after several calls.

        `risks`: whether one of them makes writes that `undoes` does not have.
        """
        return self._copy()

    # Going back.

    def check_rewind(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Check that rows can forget their last tokens.

        Args:
            starts: the position of each row.
            counts: how many tokens each forgets.
            firsts: the positions of a new session.

        Raises:
            NotRewindable: what was seen before has been written over.
            CannotRewind: rows would go back by different counts.
        """

    def check_goes_back(self, counting: frozenset[str]) -> None:
        """Check that calls can be forgotten at all.

        `counting`: names of the methods that add to the position.

        Raises:
            NotRewindable: they cannot.
        """
        if self.group.writers:
            raise self.not_rewindable(self.why_lost())

    def why_lost(self) -> str:
        """Say why calls that wrote these states cannot be forgotten."""
        return "it is plain, and what a call wrote over it is gone"

    def most_forgotten(self, starts: Sequence[int]) -> Sequence[int] | None:
        """Return how many tokens each row can forget, None for all that it has."""
        return None

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Forget what lies after the positions `ends`, as if it had never been.

        Args:
            starts: the positions before.
            ends: the positions to go back to, which `check_rewind` allows.
            firsts: those of a new session.
        """

    def trim(self, ends: Sequence[int] | None) -> None:
        """Give memory back that holds nothing after the positions, None without any."""

    # What a fork or a file has of them.

    def held(self) -> int | None:
        """Return how many slots, the first, may have been written; None for all."""
        return None

    @classmethod
    def saved(cls, marks: Marks, state: int) -> int | None:
        """Return how many slots of a state a file has, None for all."""
        return None

    def mark(self, marks: Marks, starts: Sequence[int] | None) -> None:
        """Say in `marks` how far they have been written; `lengths` are there."""

    def take(self, marks: Marks) -> None:
        """Take what `mark` said, of states that hold the same."""

    def clear(self) -> None:
        """Forget all, as the memory was given back."""

    # One row alone.

    def row_problem(self) -> str:
        """Return why rows cannot be taken one by one, "" where they can."""
        return "" if self.group.has_rows else "no rows of its own"

    def reset_row(self, row: int) -> None:
        """Make one row as it is in a new session."""
        self.store.fill(Span(row=row))

    def take_row(self, row: int, other: "Kind", source: int, start: int) -> None:
        """Make one row as a row of other states of the same kind and shape is.

        Args:
            row: to be written.
            other: who has the other row; may be these states.
            source: the other row.
            start: its position.
        """
        content = other.store.read(Span(row=source))
        self.store.write(Span(row=row), content)

    # For kinds.

    def not_rewindable(self, reason: str) -> NotRewindable:
        """Return the error that names the first of these states."""
        return NotRewindable(state=self.group.first.name, reason=reason)

    def check_row_counts(self, counts: Sequence[int]) -> None:
        """Check that rows go back alike, or have slots of their own.

        Raises:
            CannotRewind: neither.
        """
        if len(set(counts)) > 1 and not self.group.has_rows:
            name = self.group.first.name
            raise CannotRewind(reason=f"{name} has no rows of its own")

    def by_row(self, ends: Sequence[int]) -> Iterable[tuple[int | None, int]]:
        """Return each row and the position where it ends.

        Rows that end together are one, None; so are those of states without rows,
        which end where the last one does.
        """
        if len(set(ends)) == 1 or not self.group.has_rows:
            return [(None, max(ends))]
        return enumerate(ends)

    def fill_rows(self, lows: Sequence[int], highs: Sequence[int]) -> None:
        """Give the slots of each row, from one to before another, initial content."""
        pairs = list(zip(lows, highs, strict=True))
        if len(set(pairs)) == 1:
            self.store.fill(Span(*pairs[0]))
            return
        for row, (low, high) in enumerate(pairs):
            self.store.fill(Span(low, high, row))

    def _copy(self, span: Span = WHOLE) -> Undo:
        """Return what writes back what a span holds now."""
        store, content = self.store, self.store.read(span)
        return lambda: store.write(span, content)
