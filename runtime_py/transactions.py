"""What makes a call all or nothing: what is noted before it, and put back if it fails.

In: the memory of a session, what a call writes and asks for. Out: after success, the
session one call further; after a failure, the session as it was, or poisoned where a
state has been written that knowing the position cannot put back.
"""

from collections.abc import Sequence
from operator import add

from kvc.runtime.arrays import Array, copy_into, own_copy
from kvc.runtime.effects import Hazard
from kvc.runtime.entries import ALL_SLOTS, Demand, Entry, check_room, check_rows
from kvc.runtime.executor import Progress
from kvc.runtime.positions import find_position
from kvc.runtime.rings import note_reach, put_rings_back, reached_by, written_slots
from kvc.runtime.states import StateMemory, Tip
from kvc.schema.errors import (
    CacheOverflow,
    CountOutOfRange,
    IndexOutOfRange,
    NoPosition,
    Poisoned,
)
from kvc.schema.model import Cursor, CursorKind

# These errors promise that the instruction has written nothing.
_CLEAN = (CacheOverflow, CountOutOfRange, IndexOutOfRange)


class Transaction:
    """One call on a usable session, from before its first write.

    Attributes:
        starts: the position of each row before the call, None without one.
    """

    __slots__ = (
        "_counters",
        "_demand",
        "_entry",
        "_hazards",
        "_memory",
        "_position",
        "_reached",
        "_shadows",
        "_tip",
        "starts",
    )

    def __init__(
        self,
        entry: Entry,
        demand: Demand,
        memory: StateMemory,
        position: Cursor | None,
    ) -> None:
        """Check that the call may run, and note what a failure needs.

        Raises:
            CacheOverflow: the call's tokens do not fit.
            StateMismatch: it counts other rows than the session has.
        """
        self.starts = starts = _starts(position, memory)
        if starts is not None:
            check_rows(entry.method, demand, starts)
            check_room(demand, starts, memory)
        self._entry, self._demand, self._memory = entry, demand, memory
        self._position = position
        self._tip, self._counters = memory.tip, memory.save_counters()
        if memory.shared:
            self._note_changes()
        effects = entry.effects
        clean = not effects.hazards and starts is not None
        self._hazards = () if clean else self._find_hazards()
        self._shadows = self._copy_states() if memory.transactional else ()
        if effects.rows:
            end = ALL_SLOTS
            if starts is not None:
                end = max((high for _, high in self._spans(starts)), default=0)
            if end > memory.written:
                memory.written = end
        self._reached: list[int] = []
        if effects.rings and starts is not None:
            self._reached = reached_by(memory, starts)
            note_reach(memory, starts, demand.steps(len(starts)))
        # Stands until the call has ended one way or the other: an interrupt may come
        # at any point, while a failure is being handled too.
        memory.poisoned = entry.method.name

    def commit(self) -> None:
        """Count what the call has added."""
        memory, position = self._memory, self._position
        counts = position is not None and position.kind is CursorKind.SESSION
        if counts or self._demand.lengths:
            memory.tip = self._advanced(counts)
        memory.poisoned = ""

    def _advanced(self, counts: bool) -> Tip:
        """Return how far the session is after the call."""
        lengths, counted = list(self._tip.lengths), self._tip.counted
        for state, length, _ in self._demand.lengths:
            lengths[state] = length
        if counts:
            steps = self._demand.steps(len(counted))
            counted = tuple(map(add, counted, steps))
        return Tip(tuple(lengths), counted)

    def roll_back(self, progress: Progress, error: BaseException) -> None:
        """Put back what the call may have written, after it failed.

        States that cannot be put back leave the session poisoned.
        """
        memory = self._memory
        memory.poisoned = self._entry.method.name
        memory.tip = self._tip
        memory.restore_counters(self._counters)
        if self.starts is not None:
            for state in self._entry.effects.rows:
                self._put_rows_back(state, self.starts)
            if self._entry.effects.rings:
                put_rings_back(memory, self.starts, self._reached)
        for state, _, reach in self._demand.lengths:
            memory.put_back(state, None, self._tip.lengths[state], reach)
        for array, saved in self._shadows:
            copy_into(array, saved)
        clean = isinstance(error, _CLEAN) and not progress.inside
        last = progress.place - clean
        hit = any(hazard.instruction <= last for hazard in self._hazards)
        if not hit or memory.transactional:
            memory.poisoned = ""

    def _put_rows_back(self, state: int, starts: Sequence[int]) -> None:
        """Put back the slots from the position on."""
        memory = self._memory
        ends = [high for _, high in self._spans(starts)]
        for row, low in rows_of(memory, state, starts):
            high = max(ends, default=low) if row is None else ends[row]
            memory.put_back(state, row, low, high)

    def _spans(self, starts: Sequence[int]) -> list[tuple[int, int]]:
        """Return which slots of each row the call may write at the position."""
        extents = self._demand.extents(len(starts))
        return [(start, start + n) for start, n in zip(starts, extents, strict=True)]

    def _note_changes(self) -> None:
        """Note which slots of each state the call may write."""
        effects, memory, demand = self._entry.effects, self._memory, self._demand
        anywhere = {hazard.state for hazard in effects.hazards}
        starts = self.starts or ()
        spans = self._spans(starts)
        reaches = {state: reach for state, _, reach in demand.lengths}
        rings = {ring.state: ring for ring in memory.rings}
        for state in self._entry.method.writes:
            if state in anywhere or self.starts is None:
                memory.note_change(state)
            elif state in effects.rows:
                for low, high in spans:
                    if low < high:
                        memory.note_change(state, low, high)
            elif state in rings:
                steps = demand.steps(len(starts))
                for slots in written_slots(rings[state], starts, steps):
                    memory.note_change(state, *slots)
            elif state in reaches:
                memory.note_change(state, self._tip.lengths[state], reaches[state])
            else:
                memory.note_change(state)

    def _find_hazards(self) -> Sequence[Hazard]:
        effects, lengths = self._entry.effects, self._tip.lengths
        found = [
            hazard
            for hazard in effects.hazards
            if not hazard.only_filled or lengths[hazard.state]
        ]
        if self.starts is None:
            found += [Hazard(0, state, False) for state in effects.rows]
        return found

    def _copy_states(self) -> Sequence[tuple[Array, Array]]:
        """Return copies of what the call writes and what cannot be put back else."""
        memory = self._memory
        arrays = [memory.current(i) for i in {h.state for h in self._hazards}]
        return [(array, own_copy(array)) for array in arrays]


def _starts(position: Cursor | None, memory: StateMemory) -> list[int] | None:
    """Return the position of each row, None where there is none."""
    if position is None:
        return None
    try:
        return find_position(position, memory)
    except NoPosition:
        return None


def check_usable(memory: StateMemory) -> None:
    """Check that no call has left states half written.

    Raises:
        Poisoned: one has.
    """
    if memory.poisoned:
        raise Poisoned(method=memory.poisoned)


def rows_of(
    memory: StateMemory, state: int, starts: Sequence[int]
) -> list[tuple[int | None, int]]:
    """Return each row of a state, and the position where it ends.

    Rows that end together are one, None; so are those of a state without a batch axis,
    which end where the last one does.
    """
    declared = memory.states[state]
    shape = memory.arrays[state].shape
    if len(set(starts)) == 1:
        return [(None, starts[0])]
    if declared.axis == 0 or shape[0] != len(starts):
        return [(None, max(starts))]
    return list(enumerate(starts))
