"""A point of a session to come back to when one of several calls fails.

In: the methods that are going to run, the memory of their session. Out: nothing when
all went well; otherwise the session as it was. Slots behind the position, lengths and
counters are put back; of anything else that the methods write, a copy is kept, of rings
as far as they have been written.
"""

from collections.abc import Sequence
from types import TracebackType

from kvc.runtime.arrays import Array, copy_into, own_copy, prefix
from kvc.runtime.entries import Entry
from kvc.runtime.rings import held_slots, reached_by
from kvc.runtime.states import StateMemory
from kvc.runtime.transactions import rows_of


class Savepoint:
    """The memory of a session at one moment; a context manager."""

    def __init__(
        self, entries: Sequence[Entry], memory: StateMemory, starts: Sequence[int]
    ) -> None:
        """Note what is there, and copy what nothing else would bring back.

        Args:
            entries: of the methods that are going to run.
            memory: of a session that can be used.
            starts: its positions.
        """
        effects = [entry.effects for entry in entries]
        self._memory, self._starts = memory, starts
        self._rows = {state for found in effects for state in found.rows}
        self._grown = {state for found in effects for state in found.growth}
        self._tip, self._counters = memory.tip, memory.save_counters()
        memory.reached = reached_by(memory, starts)
        self._reached = list(memory.reached)
        hazards = {h.state for found in effects for h in found.hazards}
        self._copies = [(state, self._copy(state)) for state in sorted(hazards)]
        rings = {state for found in effects for state in found.rings}
        self._rings = [(state, self._copy(state)) for state in sorted(rings)]

    def __enter__(self) -> "Savepoint":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Bring back what was there, if an error comes."""
        if kind is not None:
            self._go_back()

    def _copy(self, state: int) -> Array:
        """Return a copy of a state, of a ring up to where it has been written."""
        memory = self._memory
        declared, array = memory.states[state], memory.current(state)
        if declared.axis is None or declared.window is None:
            return own_copy(array)
        shape = list(array.shape)
        shape[declared.axis] = held_slots(memory, shape[declared.axis])
        return own_copy(prefix(array, tuple(shape)))

    def _go_back(self) -> None:
        memory = self._memory
        memory.poisoned = memory.poisoned or "a call in parts"  # until all is back
        lengths = memory.tip.lengths
        memory.tip = self._tip
        memory.restore_counters(self._counters)
        for state in self._rows:
            for row, low in rows_of(memory, state, self._starts):
                memory.put_back(state, row, low, memory.written)
        for state in self._grown:
            memory.put_back(state, None, self._tip.lengths[state], lengths[state])
        for state, saved in (*self._copies, *self._rings):
            memory.note_change(state)
            copy_into(prefix(memory.arrays[state], saved.shape), saved)
        for state, saved in self._rings:
            axis = memory.states[state].axis
            assert axis is not None
            low, high = saved.shape[axis], memory.arrays[state].shape[axis]
            memory.put_back(state, None, low, high)
        memory.reached = self._reached
        memory.poisoned = ""
