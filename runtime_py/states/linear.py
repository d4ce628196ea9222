"""Caches that are written from the position on: what lies after it is dead.

Slots after the position hold their initial content, so that a rewind or a call that
failed has only to put that back: the states are then as if the tokens had never been.
"""

from collections.abc import Sequence
from functools import partial

from kvc.runtime.states.access import Mode, Writes
from kvc.runtime.states.groups import Group
from kvc.runtime.states.kind import Call, Kind, Marks, Undo
from kvc.runtime.states.owner import ALL_SLOTS, Span, Store
from kvc.schema.model import State, StateKind


class Linear(Kind):
    """Caches of a session.

    Attributes:
        written: slots from here on hold what they held at first, in all rows.
    """

    undoes = frozenset({Mode.AT_CURSOR})
    placed = True

    def __init__(self, group: Group, store: Store, lengths: list[int]) -> None:
        super().__init__(group, store, lengths)
        self.written = 0

    @classmethod
    def takes(cls, state: State) -> bool:
        """Tell whether a state is of this kind."""
        return state.kind is StateKind.LINEAR and state.at_position

    def begin(self, writes: Writes, extent: int, call: Call) -> Undo:
        """Note what a call may write; see `Kind.begin`."""
        starts, ends = call.starts, call.ends(extent)
        anywhere = starts is None or bool(writes.risks)
        if self.store.shared:
            self._note(None if anywhere else starts, ends)
        self.written = max(self.written, *ends)
        copy = self._copy() if anywhere and call.keeps else None
        return partial(self._undo, starts, ends, copy)

    def _note(self, lows: Sequence[int] | None, highs: Sequence[int]) -> None:
        """Note which slots of rows are written; all where nobody says from where."""
        if lows is None:
            self.store.note()
            return
        for low, high in zip(lows, highs, strict=True):
            if low < high:
                self.store.note(low, high)

    def _undo(
        self, starts: Sequence[int] | None, ends: Sequence[int], copy: Undo | None
    ) -> None:
        for row, low in self.by_row(starts) if starts is not None else ():
            self.store.fill(Span(low, max(ends) if row is None else ends[row], row))
        if copy is not None:
            copy()

    def hold(self, risks: bool, starts: Sequence[int]) -> Undo:
        """Return what brings everything back after several calls."""
        copy = self._copy() if risks else None

        def bring_back() -> None:
            self._clear(starts)
            if copy is not None:
                copy()

        return bring_back

    def _clear(self, ends: Sequence[int]) -> None:
        """Give the slots after the positions of rows their initial content."""
        for row, low in self.by_row(ends):
            self.store.fill(Span(low, self.written, row))

    def check_goes_back(self, counting: frozenset[str]) -> None:
        """Check that calls can be forgotten: they can."""

    def check_rewind(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Check that rows go back alike, or have slots of their own."""
        self.check_row_counts(counts)

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Forget what lies after the positions; see `Kind.rewind`."""
        self._clear(ends)
        self.written = max(ends)

    def trim(self, ends: Sequence[int] | None) -> None:
        """Give memory back that holds nothing after the positions."""
        if ends is None:
            return
        self._clear(ends)
        for row, low in self.by_row(ends):
            self.store.give_back(Span(low, row=row))
        self.written = min(self.written, max(ends))

    def held(self) -> int:
        """Return how many slots, the first, may have been written."""
        return self.written

    @classmethod
    def saved(cls, marks: Marks, state: int) -> int:
        """Return how many slots of a state a file has."""
        return marks.written

    def mark(self, marks: Marks, starts: Sequence[int] | None) -> None:
        """Say how far they have been written."""
        marks.written = max(marks.written, self.written)

    def take(self, marks: Marks) -> None:
        """Take what `mark` said."""
        self.written = marks.written

    def clear(self) -> None:
        """Forget all."""
        self.written = 0

    def reset_row(self, row: int) -> None:
        """Make one row as it is in a new session."""
        self.store.fill(Span(0, self.written, row))

    def take_row(self, row: int, other: Kind, source: int, start: int) -> None:
        """Make one row as a row of others is; see `Kind.take_row`."""
        assert isinstance(other, Linear)
        # A method that writes all of it may have left something after the position.
        end = ALL_SLOTS if other.written > other.store.slots else start
        content = other.store.read(Span(0, end, source))
        self.store.write(Span(0, end, row), content)
        self.store.fill(Span(end, self.written, row))
        self.written = max(self.written, end)
