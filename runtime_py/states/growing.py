"""Growing states: each state has a length, which is the same for all rows.

In and out: as `kind.py`. Methods append after the end, or replace the whole content.
Slots after the length are unused, so a call that appends is undone by restoring the old
length. A call that replaces the content cannot be undone.
"""

from collections.abc import Sequence
from functools import partial

from kvc.runtime.states.kind import Demand, Kind, Undo, Write, Writes
from kvc.runtime.states.owner import Span
from kvc.schema.graph import AccessMode


class Append(Kind):
    """Growing states of a session; `lengths` holds their lengths."""

    undoes = frozenset({AccessMode.APPEND})
    grows = True
    recorded = "lengths"

    def room(self, capacity: int | None, counts: bool) -> int:
        if capacity is None or not (counts or self.group.first.at_position):
            return self.store.slots
        return min(self.store.slots, capacity)

    def begin(
        self,
        writes: Writes,
        extent: int,
        starts: Sequence[int] | None,
        demand: Demand,
        keeps: bool,
    ) -> Undo:
        before = self._lengths()
        if self.store.shared:
            low = 0 if writes.risks else min(before)
            self.store.note(low, max(before + [reach for *_, reach in demand.lengths]))
        keeps = keeps and any(map(self._matters, writes.risks))
        copy = self.copy(Span(0, max(before))) if keeps else None
        return partial(self._undo, before, demand, copy)

    def _undo(self, before: Sequence[int], demand: Demand, copy: Undo | None) -> None:
        reaches = {state: reach for state, _, reach in demand.lengths}
        ends = zip(self.group.states, self._lengths(), strict=True)
        self._cut(before, [max(reaches.get(state, 0), end) for state, end in ends])
        if copy is not None:
            copy()

    def _cut(self, lengths: Sequence[int], ends: Sequence[int]) -> None:
        """Set the length of each state, and restore the initial content after it.

        Args:
            lengths: the new length of each state of the group.
            ends: for each state, the slot at which the restored content ends.
        """
        for state, length in zip(self.group.states, lengths, strict=True):
            self.lengths[state] = length
        if len(set(lengths)) == len(set(ends)) == 1:
            self.store.fill(Span(lengths[0], ends[0]))
            return
        for index, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            self.store.fill(Span(length, end, state=index))

    def lost(self, writes: Writes, last: int, unplaced: bool) -> bool:
        lost = (risk for risk in writes.risks if risk.instruction <= last)
        return any(map(self._matters, lost))

    def _matters(self, risk: Write) -> bool:
        """Tell whether a write destroys content that cannot be restored without a copy.

        `risk` is a write that the kind cannot undo. If it replaces an empty state, it
        destroys nothing.
        """
        return (
            risk.access.mode is not AccessMode.REPLACE or self.lengths[risk.state] > 0
        )

    def why_lost(self, counting: frozenset[str]) -> str:
        at = self.group.first.at_position
        return "" if at else "not every method writes it at the position"

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        before = self._lengths()
        self._cut([min(length, ends[0]) for length in before], before)

    def trim(self, ends: Sequence[int] | None) -> None:
        for index, length in enumerate(self._lengths()):
            self.store.give_back(Span(length, state=index))

    def held(self) -> int:
        return max(self._lengths())

    def row_problem(self) -> str:
        return f"all rows of {self.group.first.name} share one length"

    def _lengths(self) -> list[int]:
        return list(map(self.lengths.__getitem__, self.group.states))
