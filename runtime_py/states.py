"""The memory of a session's states: reserved arenas, initial values, what lies behind.

In: the states a program declares, the sizes that a session fixed, initial values.
Out: one array per state at an address that stays, and how long those are that grow.
States that a reset clears lie in one arena and those it keeps in another, so that a
reset gives all pages back at once; counters lie first, so that one copy saves them.
When calls may happen, and what they may write, is left to `transactions.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvc.runtime.arenas import PAGE_NBYTES, Arena, align_up
from kvc.runtime.arrays import Array, copy_into, prefix, zero
from kvc.schema.model import ResetRule, State, StateKind

InitialValue = Callable[[int], Array]


@dataclass(frozen=True, slots=True)
class Tip:
    """How far a session has come, where its states do not say it themselves.

    Attributes:
        lengths: of the APPEND states along their axes, 0 for others; by state id.
        counted: the position where the session counts it, int64 [batch].
    """

    lengths: tuple[int, ...]
    counted: tuple[int, ...]


class StateMemory:
    """The states of one session; compared and hashed by identity.

    Attributes:
        states: as the program declares them.
        sizes: of the symbols that the session fixed.
        capacity: greatest position, None where nothing limits it.
        transactional: whether calls copy what they could not put back otherwise.
        arrays: all of each state's memory; APPEND states at their greatest length.
        tip: how far the session has come.
        written: slots from here on hold what they held at first, in every state
            whose slots behind the position are dead.
        poisoned: name of the call that left states half written, or "".
        closed: whether the memory has been given back.
    """

    def __init__(
        self,
        states: Sequence[State],
        sizes: Mapping[str, int],
        initial: InitialValue,
        capacity: int | None = None,
        rows: int = 1,
        transactional: bool = False,
    ) -> None:
        self.states = states
        self.sizes = dict(sizes)
        self.capacity = capacity
        self.transactional = transactional
        self._initial = initial
        self.tip = Tip((0,) * len(states), (0,) * rows)
        self.written = 0
        self.poisoned = ""
        self.closed = False
        self.arrays: list[Array] = [np.empty(0)] * len(states)
        self._offsets = [0] * len(states)
        self._counters: list[tuple[Arena, int]] = []
        self._arenas = {rule: self._place(rule) for rule in ResetRule}
        for rule in ResetRule:
            self._fill(rule)

    def current(self, state: int) -> Array:
        """Return what a state holds now: its memory, up to its length if it grows."""
        array, declared = self.arrays[state], self.states[state]
        if declared.kind is not StateKind.APPEND or declared.axis is None:
            return array
        length = self.tip.lengths[state]
        shape = list(array.shape)
        shape[declared.axis] = length
        return prefix(array, tuple(shape))

    def reset(self) -> None:
        """Give the pages of what a reset clears back, and copy initial values in.

        Where a call has left states half written, kept ones are lost as well, and
        begin anew.
        """
        rules = list(ResetRule) if self.poisoned else [ResetRule.INITIAL]
        kept = [state for state in self.states if state.reset not in rules]
        if not any(state.at_position for state in kept):
            self.written = 0
        lengths = (
            0 if state.reset in rules else length
            for state, length in zip(self.states, self.tip.lengths, strict=True)
        )
        self.poisoned = "reset"
        for rule in rules:
            self._arenas[rule].discard()
            self._fill(rule)
        self.tip = Tip(tuple(lengths), (0,) * len(self.tip.counted))
        self.poisoned = ""

    def close(self) -> None:
        """Let go of the memory; arrays that are still alive keep it."""
        self.closed = True
        self.arrays = []
        self._arenas = {}
        self._counters = []

    def save_counters(self) -> list[bytes]:
        """Return the bytes of all counters."""
        return [arena.read(0, nbytes) for arena, nbytes in self._counters]

    def restore_counters(self, saved: Sequence[bytes]) -> None:
        """Put the bytes of all counters back."""
        for (arena, _), content in zip(self._counters, saved, strict=True):
            arena.write(0, content)

    def first_counts(self, state: int) -> list[int]:
        """Return what a counter holds in a new session."""
        array, initial = self.arrays[state], self.states[state].initial
        if initial is None:
            return [0] * array.size
        counts: list[int] = self._initial(initial).reshape(-1).tolist()
        return counts

    def put_back(self, state: int, row: int | None, low: int, high: int) -> None:
        """Give slots of a state their initial content again.

        Args:
            state: id of one that has a sequence axis.
            row: index on axis 0; None for all rows.
            low: the first slot.
            high: the one behind the last; more than there are means all.
        """
        declared, array = self.states[state], self.arrays[state]
        axis = _axis(declared)
        high = min(high, array.shape[axis])
        if low >= high:
            return
        if declared.initial is not None:
            part = _slots(array, axis, row, low, high)
            start = self._initial(declared.initial)
            copy_into(part, _slots(start, axis, row, low, high))
            return
        nbytes = (high - low) * array.strides[axis]
        if nbytes < PAGE_NBYTES or (row is not None and _inside(declared, 0)):
            zero(_slots(array, axis, row, low, high))
            return
        for start_nbytes in self._runs(state, row, low, high):
            self._arenas[declared.reset].clear(start_nbytes, nbytes)

    def give_back(self, state: int, low: int) -> None:
        """Give back whole pages of a state from slot `low` on, which hold zeros."""
        declared, array = self.states[state], self.arrays[state]
        axis = _axis(declared)
        high = array.shape[axis]
        nbytes = (high - low) * array.strides[axis]
        if declared.initial is None and nbytes >= PAGE_NBYTES:
            for start in self._runs(state, None, low, high):
                self._arenas[declared.reset].give_back(start, nbytes)

    def _runs(self, state: int, row: int | None, low: int, high: int) -> list[int]:
        """Return where the runs of bytes of some slots begin in their arena."""
        declared, array = self.states[state], self.arrays[state]
        axis = _axis(declared)
        starts = np.array([self._offsets[state] + low * array.strides[axis]])
        for dim in declared.layout[: declared.layout.index(axis)]:
            only = dim == 0 and row is not None
            indices = np.array([row]) if only else np.arange(array.shape[dim])
            starts = (starts[:, None] + indices * array.strides[dim]).reshape(-1)
        found: list[int] = starts.tolist()
        return found

    def _place(self, rule: ResetRule) -> Arena:
        chosen = [
            (i, state) for i, state in enumerate(self.states) if state.reset is rule
        ]
        chosen.sort(key=lambda pair: pair[1].kind is not StateKind.COUNTER)
        end = counters = 0
        for i, state in chosen:
            self._offsets[i] = end
            end = align_up(end + state.type.nbytes(self.sizes))
            if state.kind is StateKind.COUNTER:
                counters = end
        arena = Arena(end, "the states of a session")
        if counters:
            self._counters.append((arena, counters))
        for i, state in chosen:
            self.arrays[i] = self._array(arena, self._offsets[i], state)
        return arena

    def _array(self, arena: Arena, offset: int, state: State) -> Array:
        """Return the state's array; its strides follow the layout."""
        shape = state.type.shape(self.sizes)
        if state.layout == tuple(range(len(shape))):
            return arena.array(offset, state.type.dtype, shape)
        in_memory = tuple(shape[dim] for dim in state.layout)
        laid_out = arena.array(offset, state.type.dtype, in_memory)
        return laid_out.transpose(np.argsort(state.layout).tolist())

    def _fill(self, rule: ResetRule) -> None:
        for state, array in zip(self.states, self.arrays, strict=True):
            if state.reset is rule and state.initial is not None:
                copy_into(array, self._initial(state.initial))


def _axis(state: State) -> int:
    assert state.axis is not None, "only states with an axis have slots"
    return state.axis


def _inside(state: State, dim: int) -> bool:
    """Tell whether a dim lies within one slot in memory, not around the slots."""
    return state.layout.index(dim) >= state.layout.index(_axis(state))


def _slots(array: Array, axis: int, row: int | None, low: int, high: int) -> Array:
    where = [slice(None)] * array.ndim
    if row is not None:
        where[0] = slice(row, row + 1)
    where[axis] = slice(low, high)
    return array[tuple(where)]
