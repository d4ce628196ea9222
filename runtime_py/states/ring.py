"""Ring buffers: slots of positions before the window are reused.

In and out: as `kind.py`. A ring buffer holds as many of the last positions as it has
slots, counted back from the furthest position ever written, which a rewind does not
lower. So a row that has reused slots can only be rewound to a position whose window is
still in the buffer. A row that has not reused slots yet is like a row of a linear
cache. If every window includes the first positions (attention sinks), these positions
are never overwritten, so a row can always be rewound to one of them.
"""

from collections.abc import Sequence

from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.kind import Demand, Kind, Undo, Writes
from kvc.runtime.states.linear import Linear
from kvc.runtime.states.owner import Group, Span, Store
from kvc.schema.frozen import frozen
from kvc.schema.graph import AccessMode
from kvc.schema.rings import Window


@frozen
class _Copy:
    """The content of ring buffers of one row.

    Attributes:
        position: the position of the row.
        reached: the furthest position that the buffers were written at.
        content: the written slots, [states, *shape], as `Store.read` returns them.
    """

    position: int
    reached: int
    content: Array


class Ring(Linear):
    """Ring buffers of a session.

    Attributes:
        slots: the number of slots of each state.
        kept: the copies made at chosen positions, the oldest first.
    """

    undoes = frozenset(AccessMode)
    recorded = "reached"
    window: Window
    kept: tuple[_Copy, ...] = ()

    def __init__(self, group: Group, store: Store, lengths: list[int]) -> None:
        super().__init__(group, store, lengths)
        assert group.first.window is not None
        self.slots, self.window = store.slots, group.first.window
        self.longest = self.window.longest_call(self.slots)

    def begin(
        self,
        writes: Writes,
        extent: int,
        starts: Sequence[int] | None,
        demand: Demand,
        keeps: bool,
    ) -> Undo | None:
        reached, held = self.reached, Span(0, self.held())
        undo = super().begin(writes, extent, starts, demand, keeps)
        goes_round = starts is not None and extent > self.longest
        if not (demand.several or goes_round):
            return undo
        copy = self.copy(held)

        def bring_back() -> None:
            self.store.fill(Span(held.high))
            copy()
            self.reached = reached

        return bring_back

    def without(self, reached: int, cut: int) -> int:
        wrapped = reached > self.slots
        return reached if wrapped else super().without(reached, cut)

    @property
    def needs_copies(self) -> bool:
        return True

    @property
    def kept_positions(self) -> Sequence[int]:
        return [one.position for one in self.kept]

    @property
    def kept_nbytes(self) -> int:
        return sum(one.content.nbytes for one in self.kept)

    def keep(self, starts: Sequence[int], most: int) -> None:
        (position,), (reached,) = starts, self.reach(starts)
        content = self.store.read(Span(0, min(reached, self.slots)))
        others = [one for one in self.kept if one.position != position]
        self.kept = (*others, _Copy(position, reached, content))[-most:]

    def _find(self, position: int) -> _Copy | None:
        return next((one for one in self.kept if one.position == position), None)

    def forget(self) -> None:
        super().forget()
        self.kept = ()

    def follow(self, other: Kind) -> None:
        super().follow(other)
        assert isinstance(other, Ring)
        self.kept = other.kept

    def forget_row(self, row: int) -> None:
        super().forget_row(row)
        self.kept = ()

    def note(self, lows: Sequence[int] | None, highs: Sequence[int]) -> None:
        assert lows is not None
        for low, high in zip(lows, highs, strict=True):
            count = min(high - low, self.slots)
            for first, run in self.window.runs(low, count, self.slots):
                self.store.note(first, first + run)

    def why_gone(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> str:
        most = self.most_rewindable(starts)
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            anew = self._is_anew(start - count, firsts[row])
            kept = self._find(start - count) is not None
            if count > most[row] and not anew and not kept:
                where = f" in row {row}" if len(starts) > 1 else ""
                return (
                    f"its {self.slots} slots have room for {self.longest - 1} tokens "
                    f"after a window of {self.window}, and the window before the "
                    f"last {most[row]}{where} has been overwritten: {count} cannot "
                    "be forgotten"
                )
        return ""

    def most_rewindable(self, starts: Sequence[int]) -> Sequence[int]:
        """Return how many tokens of each row a rewind can drop.

        A rewind must leave the window of the next query, the slots before its position,
        in the buffer. The buffer holds the last `slots` positions, counted back from
        the furthest position ever written.
        """
        return [
            max(self.longest - (reached - start), 0) if reached > self.slots else start
            for start, reached in zip(starts, self.reach(starts), strict=True)
        ]

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        copy = self._find(ends[0]) if starts[0] > ends[0] else None
        self.kept = tuple(one for one in self.kept if one.position <= ends[0])
        if copy is not None:
            self.store.fill(Span(0, self.slots))
            self.store.write(Span(0, min(copy.reached, self.slots)), copy.content)
            self.reached = [copy.reached]
            return
        lows, highs, reached = [], [], []
        rows = zip(starts, ends, self.reach(starts), firsts, strict=True)
        for start, end, high, first in rows:
            anew = start > end and self._is_anew(end, first)
            round_it = high > self.slots  # a wrapped row keeps all slots, or none
            lows.append(self.window.kept(end) if round_it else end)
            highs.append(self.slots * anew if round_it else high)
            reached.append(high if round_it and not anew else end)
        self.by_row(self.store.fill, lows, highs)
        self.reached = reached

    def _is_anew(self, end: int, first: int) -> bool:
        """Tell whether the window before `end` is empty, or has only attention sinks.

        `first` is the position of the row in a new session.
        """
        return end == first or end == self.window.kept(end)

    def trim(self, ends: Sequence[int] | None) -> None:
        if ends is not None:
            self.store.give_back(Span(self.held()))
