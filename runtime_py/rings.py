"""Rings: how long a call may be, how far rows may go back, what a failure leaves.

In: the states of a session, the position of each row before and after. Out: the slots
of rings as they have to be, and `StateMemory.reached`. A ring has forgotten what lies
further back than its slots, counted from the furthest position that was ever written;
so a session keeps that position, which a rewind does not take back. As long as a ring
has not gone round, it is put back as any cache is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING

from kvc.schema.errors import NotRewindable
from kvc.schema.model import State
from kvc.schema.types import evaluate

if TYPE_CHECKING:
    from kvc.runtime.states import StateMemory

_Span = tuple[int | None, int, int]  # a row, None for all; slots from one to another


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring with a window, in a session.

    Attributes:
        state: its id.
        name: of the state.
        slots: how many there are.
        window: how many positions a query sees, its own among them.
    """

    state: int
    name: str
    slots: int
    window: int

    @property
    def longest(self) -> int:
        """Return how many tokens a call may add, and how many may be forgotten."""
        return self.slots - self.window + 1

    def most_forgotten(self, start: int, reached: int) -> int | None:
        """Return how many tokens a row may forget, None for all that it has.

        The query behind them sees `window - 1` positions before it; those are there
        that lie less than `slots` before the furthest that was written.

        Args:
            start: the row's position.
            reached: the furthest that it has written up to.
        """
        if reached <= self.slots:
            return None
        return max(self.longest - (reached - start), 0)


def find_rings(states: Sequence[State], sizes: Mapping[str, int]) -> tuple[Ring, ...]:
    """Return the rings with windows, under the sizes that a session fixes."""
    return tuple(
        Ring(i, s.name, evaluate(s.type.dims[s.axis], sizes), s.window)
        for i, s in enumerate(states)
        if s.window is not None and s.axis is not None
    )


def narrowest(rings: Sequence[Ring]) -> Ring | None:
    """Return the ring that allows the shortest calls, None without rings."""
    return min(rings, key=lambda ring: ring.longest, default=None)


def reached_by(memory: "StateMemory", starts: Sequence[int]) -> list[int]:
    """Return how far each row's rings were ever written, `starts` being positions."""
    if len(memory.reached) != len(starts):
        return list(starts)
    return [max(pair) for pair in zip(memory.reached, starts, strict=True)]


def note_reach(
    memory: "StateMemory", starts: Sequence[int], counts: Sequence[int]
) -> None:
    """Note that a call may write so many positions from each row's start on."""
    before = reached_by(memory, starts)
    ends = map(add, starts, counts)
    memory.reached = [max(pair) for pair in zip(before, ends, strict=True)]


def put_rings_back(
    memory: "StateMemory", starts: Sequence[int], before: Sequence[int]
) -> None:
    """Take back what a call that failed may have written.

    Where a ring has gone round, slots are not what they were; those that have changed
    hold what no query sees any more.

    Args:
        memory: of the session.
        starts: the positions before the call.
        before: `reached_by` then.
    """
    now = reached_by(memory, starts)
    for ring in memory.rings:
        highs = [high if high <= ring.slots else 0 for high in now]
        for row, low, high in _spans(starts, highs):
            memory.put_back(ring.state, row, low, high)
    least = min((ring.slots for ring in memory.rings), default=0)
    memory.reached = [
        old if new <= least else new for old, new in zip(before, now, strict=True)
    ]


def check_forgettable(
    memory: "StateMemory",
    starts: Sequence[int],
    counts: Sequence[int],
    firsts: Sequence[int],
) -> None:
    """Check that rings hold what the rows will see after they forget some tokens.

    Raises:
        NotRewindable: one has written over it.
    """
    rows = zip(starts, counts, reached_by(memory, starts), firsts, strict=True)
    for row, (start, count, reached, first) in enumerate(rows):
        if start - count == first:
            continue  # nothing is seen
        for ring in memory.rings:
            most = ring.most_forgotten(start, reached)
            if most is not None and count > most:
                where = f" in row {row}" if len(starts) > 1 else ""
                reason = (
                    f"its {ring.slots} slots have room for {ring.longest - 1} tokens "
                    f"behind a window of {ring.window}, and what was seen before the "
                    f"last {most}{where} has been written over: {count} cannot be "
                    "forgotten"
                )
                raise NotRewindable(state=ring.name, reason=reason)


def forget(
    memory: "StateMemory",
    starts: Sequence[int],
    ends: Sequence[int],
    firsts: Sequence[int],
) -> None:
    """Put slots of rings back, as far as they hold what was there at first.

    Args:
        memory: of the session.
        starts: the positions before.
        ends: the positions after, which `check_forgettable` allows.
        firsts: those of a new session; a row that goes back so far is as new.
    """
    before = reached_by(memory, starts)
    rows = list(zip(starts, ends, before, firsts, strict=True))
    for ring in memory.rings:
        lows, highs = [], []
        for start, end, high, first in rows:
            if high > ring.slots:  # all of it, or nothing
                lows.append(0)
                highs.append(ring.slots if start > end == first else 0)
            else:
                lows.append(end)
                highs.append(high)
        for row, low, high in _spans(lows, highs):
            memory.put_back(ring.state, row, low, high)
    least = min((ring.slots for ring in memory.rings), default=0)
    memory.reached = [
        end if high <= least or start > end == first else high
        for start, end, high, first in rows
    ]


def held_slots(memory: "StateMemory", slots: int) -> int:
    """Return how many slots, the first, of a ring may hold more than at first."""
    return min(max(memory.reached, default=0), slots)


def written_slots(
    ring: Ring, starts: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the slots that a call writes in rows that add tokens: from, to before."""
    for start, count in zip(starts, counts, strict=True):
        low, high = start % ring.slots, start % ring.slots + count
        if count:
            yield (low, high) if high <= ring.slots else (0, ring.slots)


def _spans(lows: Sequence[int], highs: Sequence[int]) -> Iterator[_Span]:
    """Yield the slots of each row, once where all rows have the same."""
    pairs = list(zip(lows, highs, strict=True))
    if len(set(pairs)) == 1:
        yield None, *pairs[0]
        return
    for row, (low, high) in enumerate(pairs):
        yield row, low, high
