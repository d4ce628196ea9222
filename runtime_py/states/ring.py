"""Rings with a window: the slots of positions that have left the window are used again.

A ring has forgotten what lies further back than its slots, counted from the furthest
position that was ever written; so it keeps that position for each row, and a rewind
does not take it back. As long as a row has not gone round, it is put back as any cache.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import add

from kvc.runtime.states.access import Mode, Writes
from kvc.runtime.states.groups import Group
from kvc.runtime.states.kind import Call, Kind, Limit, Marks, Undo
from kvc.runtime.states.owner import Span, Store
from kvc.schema.model import State, StateKind


class Ring(Kind):
    """Rings of a session.

    Attributes:
        slots: how many each has.
        window: how many positions a query sees, its own among them.
        longest: how many tokens a call may add, and how many may be forgotten.
        reached: the furthest position that each row was ever written up to; empty
            before the first call.
    """

    undoes = frozenset(Mode)
    goes_round = True
    placed = True

    def __init__(self, group: Group, store: Store, lengths: list[int]) -> None:
        super().__init__(group, store, lengths)
        assert group.first.window is not None
        self.slots, self.window = store.slots, group.first.window
        self.longest = self.slots - self.window + 1
        self.reached: list[int] = []

    @classmethod
    def takes(cls, state: State) -> bool:
        """Tell whether a state is of this kind."""
        return state.kind is StateKind.RING and state.window is not None

    def limit(self) -> Limit:
        """Return how long a call may be."""
        return Limit(self.group.first.name, self.longest, self.slots, self.window)

    def begin(self, writes: Writes, extent: int, call: Call) -> Undo | None:
        """Note what a call may write; see `Kind.begin`."""
        if call.starts is None:
            return super().begin(writes, extent, call)
        starts, steps = call.starts, call.steps
        if self.store.shared:
            for low, high in self.written_slots(starts, steps):
                self.store.note(low, high)
        before = self.reached_by(starts)
        self.reached = list(map(max, before, map(add, starts, steps)))
        return partial(self._undo, starts, before)

    def _undo(self, starts: Sequence[int], before: Sequence[int]) -> None:
        """Take back what a call that failed may have written.

        Where a row has gone round, slots are not what they were; those that have
        changed hold what no query sees any more.
        """
        now = self.reached_by(starts)
        self.fill_rows(starts, [high if high <= self.slots else 0 for high in now])
        self.reached = [
            old if new <= self.slots else new
            for old, new in zip(before, now, strict=True)
        ]

    def hold(self, risks: bool, starts: Sequence[int]) -> Undo:
        """Return what brings everything back after several calls."""
        self.reached = reached = self.reached_by(starts)
        held = self.held()
        copy = self._copy(Span(0, held))

        def bring_back() -> None:
            copy()
            self.store.fill(Span(held))
            self.reached = reached

        return bring_back

    def check_goes_back(self, counting: frozenset[str]) -> None:
        """Check that calls can be forgotten: some can."""

    def check_rewind(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Check that rows find what they will see; see `Kind.check_rewind`."""
        self.check_row_counts(counts)
        rows = zip(starts, counts, self.reached_by(starts), firsts, strict=True)
        for row, (start, count, reached, first) in enumerate(rows):
            most = self.forgettable(start, reached)
            # A row that goes back to its beginning sees nothing.
            if most is None or count <= most or start - count == first:
                continue
            where = f" in row {row}" if len(starts) > 1 else ""
            reason = (
                f"its {self.slots} slots have room for {self.longest - 1} tokens "
                f"behind a window of {self.window}, and what was seen before the "
                f"last {most}{where} has been written over: {count} cannot be "
                "forgotten"
            )
            raise self.not_rewindable(reason)

    def forgettable(self, start: int, reached: int) -> int | None:
        """Return how many tokens a row may forget, None for all that it has.

        The query after them sees `window - 1` positions before it; those are there
        that lie less than `slots` before the furthest that was written.

        Args:
            start: the row's position.
            reached: the furthest that it has written up to.
        """
        if reached <= self.slots:
            return None
        return max(self.longest - (reached - start), 0)

    def most_forgotten(self, starts: Sequence[int]) -> Sequence[int]:
        """Return how many tokens each row can forget."""
        found = map(self.forgettable, starts, self.reached_by(starts))
        most = zip(found, starts, strict=True)
        return [start if limit is None else limit for limit, start in most]

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Put slots back, as far as they hold what was there at first."""
        lows, highs, reached = [], [], []
        rows = zip(starts, ends, self.reached_by(starts), firsts, strict=True)
        for start, end, high, first in rows:
            anew, round_it = start > end == first, high > self.slots
            lows.append(0 if round_it else end)  # all of it, or nothing
            highs.append((self.slots if anew else 0) if round_it else high)
            reached.append(high if round_it and not anew else end)
        self.fill_rows(lows, highs)
        self.reached = reached

    def trim(self, ends: Sequence[int] | None) -> None:
        """Give memory back that has not been written."""
        if ends is not None:
            self.store.give_back(Span(self.held()))

    def held(self) -> int:
        """Return how many slots, the first, may have been written."""
        return min(max(self.reached, default=0), self.slots)

    @classmethod
    def saved(cls, marks: Marks, state: int) -> int:
        """Return how many slots of a state a file has."""
        return max(marks.reached, default=0)

    def mark(self, marks: Marks, starts: Sequence[int] | None) -> None:
        """Say how far rows were ever written."""
        found = self.reached if starts is None else self.reached_by(starts)
        marks.reached = list(map(max, marks.reached or found, found))

    def take(self, marks: Marks) -> None:
        """Take what `mark` said."""
        self.reached = list(marks.reached)

    def clear(self) -> None:
        """Forget all."""
        self.reached = []

    def reset_row(self, row: int) -> None:
        """Make one row as it is in a new session."""
        self._take_reach(row, 0)

    def take_row(self, row: int, other: Kind, source: int, start: int) -> None:
        """Make one row as a row of others is; see `Kind.take_row`."""
        assert isinstance(other, Ring)
        reached = other.reached[source] if other.reached else start
        content = other.store.read(Span(0, reached, source))
        self.store.write(Span(0, reached, row), content)
        self._take_reach(row, reached)

    def _take_reach(self, row: int, reached: int) -> None:
        """Note that a row is written up to a position, and no further."""
        self.reached = self.reached or [0] * self.store.rows
        self.store.fill(Span(reached, self.reached[row], row))
        self.reached[row] = reached

    def reached_by(self, starts: Sequence[int]) -> list[int]:
        """Return how far each row was ever written, `starts` being positions."""
        if len(self.reached) != len(starts):
            return list(starts)
        return list(map(max, self.reached, starts))

    def written_slots(
        self, starts: Sequence[int], counts: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the slots that a call writes in rows that add tokens."""
        for start, count in zip(starts, counts, strict=True):
            low = start % self.slots
            high = low + count
            if count:
                yield (low, high) if high <= self.slots else (0, self.slots)
