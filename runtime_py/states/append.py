"""States that grow: each has a length, which all its rows share.

Methods write after the end, or replace all of it. What lies after the length is dead;
so a call that appends is undone by its old length, one that replaces is not.
"""

from collections.abc import Sequence
from functools import partial

from kvc.runtime.states.access import Access, Mode, Writes
from kvc.runtime.states.kind import Call, Kind, Marks, Undo
from kvc.runtime.states.owner import Span
from kvc.schema.errors import CannotRewind
from kvc.schema.model import State, StateKind


class Append(Kind):
    """States of a session that grow; `lengths` says how long they are."""

    undoes = frozenset({Mode.APPEND})
    grows = True

    @classmethod
    def takes(cls, state: State) -> bool:
        """Tell whether a state is of this kind."""
        return state.kind is StateKind.APPEND

    def room(self, capacity: int | None, counts: bool) -> int:
        """Return how long they may become."""
        if capacity is None or not (counts or self.group.first.at_position):
            return self.store.slots
        return min(self.store.slots, capacity)

    def begin(self, writes: Writes, extent: int, call: Call) -> Undo:
        """Note what a call may write; see `Kind.begin`."""
        before = self._lengths()
        if self.store.shared:
            reach = max((reach for *_, reach in call.lengths), default=0)
            self.store.note(0 if writes.risks else min(before), reach)
        keeps = call.keeps and any(map(self._matters, writes.risks))
        copy = self._copy(Span(0, max(before))) if keeps else None
        return partial(self._undo, before, call, copy)

    def _undo(self, before: Sequence[int], call: Call, copy: Undo | None) -> None:
        self._set_lengths(before)
        reaches = {state: reach for state, _, reach in call.lengths}
        self._fill(before, [reaches.get(state, 0) for state in self.group.states])
        if copy is not None:
            copy()

    def lost(self, writes: Writes, last: int, call: Call) -> bool:
        """Tell whether a call, once undone, has left them half written."""
        lost = (risk for risk in writes.risks if risk.instruction <= last)
        return any(map(self._matters, lost))

    def _matters(self, risk: Access) -> bool:
        """Tell whether a write that cannot be undone has something to write over."""
        return risk.mode is not Mode.REPLACE or self.lengths[risk.state] > 0

    def hold(self, risks: bool, starts: Sequence[int]) -> Undo:
        """Return what brings everything back after several calls."""
        before = self._lengths()
        copy = self._copy(Span(0, max(before))) if risks else None

        def bring_back() -> None:
            now = self._lengths()
            self._set_lengths(before)
            self._fill(before, now)
            if copy is not None:
                copy()

        return bring_back

    def check_goes_back(self, counting: frozenset[str]) -> None:
        """Check that calls can be forgotten.

        Raises:
            NotRewindable: they replace what there was.
        """
        if self.group.writers and not self.group.first.at_position:
            reason = "it is not written at the position by every method"
            raise self.not_rewindable(reason)

    def check_rewind(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Check that all rows go back alike.

        Raises:
            CannotRewind: they do not.
        """
        if len(set(counts)) > 1:
            name = self.group.first.name
            raise CannotRewind(reason=f"the rows of {name} have one length")

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Forget what lies after the position; see `Kind.rewind`."""
        before = self._lengths()
        after = [min(length, ends[0]) for length in before]
        self._fill(after, before)
        self._set_lengths(after)

    def trim(self, ends: Sequence[int] | None) -> None:
        """Give memory back that holds nothing after the lengths."""
        for index, length in enumerate(self._lengths()):
            self.store.give_back(Span(length, state=index))

    def held(self) -> int:
        """Return how many slots, the first, may have been written."""
        return max(self._lengths())

    @classmethod
    def saved(cls, marks: Marks, state: int) -> int:
        """Return how many slots of a state a file has."""
        return marks.lengths[state]

    def take(self, marks: Marks) -> None:
        """Take what `mark` said."""
        for state in self.group.states:
            self.lengths[state] = marks.lengths[state]

    def clear(self) -> None:
        """Forget all."""
        self._set_lengths([0] * len(self.group.states))

    def row_problem(self) -> str:
        """Return why rows cannot be taken one by one."""
        return "one length for all rows"

    def _lengths(self) -> list[int]:
        return [self.lengths[state] for state in self.group.states]

    def _set_lengths(self, lengths: Sequence[int]) -> None:
        for state, length in zip(self.group.states, lengths, strict=True):
            self.lengths[state] = length

    def _fill(self, lows: Sequence[int], highs: Sequence[int]) -> None:
        """Give slots of each state initial content; at once where all are alike."""
        pairs = list(zip(lows, highs, strict=True))
        if len(set(pairs)) == 1:
            self.store.fill(Span(*pairs[0]))
            return
        for index, (low, high) in enumerate(pairs):
            self.store.fill(Span(low, high, state=index))
