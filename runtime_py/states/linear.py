"""Caches that are written from the position on; later slots are unused.

In and out: as `kind.py`. Slots after the position hold their initial content. A rewind
or an undo writes the initial content to the slots after the earlier position.
"""

from collections.abc import Sequence
from functools import partial

from kvc.runtime.states.kind import Demand, Kind, Undo, Writes
from kvc.runtime.states.owner import ALL_SLOTS
from kvc.schema.graph import AccessMode


class Linear(Kind):
    """Caches of a session that are written from the position on."""

    undoes = frozenset({AccessMode.SLOTS})
    placed = True
    recorded = "written"

    def begin(
        self,
        writes: Writes,
        extent: int,
        starts: Sequence[int] | None,
        demand: Demand,
        keeps: bool,
    ) -> Undo | None:
        at_cursor = starts is not None and not writes.risks
        copy = self.copy() if keeps and not at_cursor else None
        if starts is None:
            self.store.note()
            self.reached = [ALL_SLOTS]
            return copy
        ends = demand.ends(starts, extent)
        if self.store.shared:
            self.note(starts if at_cursor else None, ends)
        reached = self.reach(ends)
        if not (at_cursor and extent == ALL_SLOTS):  # else the commit sets it
            self.reached = reached
        return copy or partial(self._undo, reached, starts)

    def without(self, reached: int, cut: int) -> int:
        return max(reached - cut, 0)

    def _undo(self, reached: Sequence[int], starts: Sequence[int]) -> None:
        # Later pieces of the same prefill may have written further.
        self.reached = self.reach(reached)
        self.rewind(starts, starts, starts)

    def note(self, lows: Sequence[int] | None, highs: Sequence[int]) -> None:
        if lows is None:
            self.store.note()
            return
        for low, high in zip(lows, highs, strict=True):
            if low < high:
                self.store.note(low, high)

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        self.by_row(self.store.fill, ends, self.reach(starts))
        self.reached = list(ends)

    def trim(self, ends: Sequence[int] | None) -> None:
        if ends is not None:
            self.rewind(ends, ends, ends)
            self.by_row(self.store.give_back, ends, [ALL_SLOTS] * len(ends))
