"""The memory of a session's states: reserved arenas, initial values, what lies behind.

In: the states a program declares, the sizes that a session fixed, initial values.
Out: one array per state at an address that stays, and how long those are that grow.
A reset gives all pages of an arena back at once.
When calls may happen, and what they may write, is left to `transactions.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvc.runtime.arenas import PAGE_NBYTES, Arena
from kvc.runtime.arrays import Array, copy_into, prefix, zero
from kvc.runtime.layouts import StateLayout, axis_of
from kvc.runtime.rings import find_rings, narrowest
from kvc.schema.model import ResetRule, State, StateKind

InitialValue = Callable[[int], Array]
_MOST_SLOTS: Final = 1 << 62
UNCHANGED: Final = (_MOST_SLOTS, 0)


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
            whose slots behind the position are dead, apart from rings.
        rings: those with a window.
        narrowest: the one of them that allows the shortest calls, None without any.
        reached: the furthest position that each row's rings were ever written up to;
            empty before the first call.
        pending: tokens of each row that a generation has made and the states do not
            hold yet; empty where there are none.
        shared: whether it has been forked, or is a fork.
        changed: of each state, the slots that may not hold what they held at the last
            fork: from one to before another.
        layout: where each lies in them.
        arenas: where they lie, by what a reset does to them.
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
        layout: StateLayout | None = None,
    ) -> None:
        """Reserve memory, and put initial values in.

        With the `layout` of memory that is to be copied, all of it is zeros.

        Raises:
            OutOfMemory: the system gives no address space.
        """
        self.states = states
        self.sizes = dict(sizes)
        self.capacity = capacity
        self.transactional = transactional
        self._initial = initial
        self.tip = Tip((0,) * len(states), (0,) * rows)
        self.written = 0
        self.rings = find_rings(states, sizes)
        self.narrowest = narrowest(self.rings)
        self.reached: list[int] = []
        self.pending: tuple[tuple[int, ...], ...] = ()
        self.shared = False
        self.changed = [UNCHANGED] * len(states)
        self.poisoned = ""
        self.closed = False
        self.layout = layout or StateLayout(states, sizes)
        self.arenas = {
            rule: Arena(self.layout.nbytes[rule], "the states of a session")
            for rule in ResetRule
        }
        self.arrays = [
            place.array(self.arenas[state.reset])
            for state, place in zip(states, self.layout.placements, strict=True)
        ]
        # A fork begins with what is there already.
        for rule in () if layout else ResetRule:
            self._fill(rule)

    def twin(self, transactional: bool) -> "StateMemory":
        """Return new memory of the same shape, of zeros.

        Raises:
            OutOfMemory: the system gives no address space.
        """
        return StateMemory(
            self.states,
            self.sizes,
            self._initial,
            capacity=self.capacity,
            rows=len(self.tip.counted),
            transactional=transactional,
            layout=self.layout,
        )

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
            self.reached = []
        lengths = (
            0 if state.reset in rules else length
            for state, length in zip(self.states, self.tip.lengths, strict=True)
        )
        self.poisoned = "reset"
        for rule in rules:
            self.arenas[rule].discard()
            self._fill(rule)
        self.tip = Tip(tuple(lengths), (0,) * len(self.tip.counted))
        self.poisoned = ""

    def close(self) -> None:
        """Let go of the memory; arrays that are still alive keep it."""
        self.closed = True
        self.arrays = []
        self.arenas = {}

    def note_change(self, state: int, low: int = 0, high: int = _MOST_SLOTS) -> None:
        """Note that slots of a state are written, or put back."""
        first, end = self.changed[state]
        self.changed[state] = min(first, low), max(end, high)

    def save_counters(self) -> list[bytes]:
        """Return the bytes of all counters."""
        counters = self.layout.counters
        return [
            arena.read(0, counters[rule])
            for rule, arena in self.arenas.items()
            if counters[rule]
        ]

    def restore_counters(self, saved: Sequence[bytes]) -> None:
        """Put the bytes of all counters back."""
        counters = self.layout.counters
        arenas = [arena for rule, arena in self.arenas.items() if counters[rule]]
        for arena, content in zip(arenas, saved, strict=True):
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
        axis = axis_of(declared)
        high = min(high, array.shape[axis])
        if low >= high:
            return
        self.note_change(state, low, high)
        if declared.initial is not None:
            part = _slots(array, axis, row, low, high)
            start = self._initial(declared.initial)
            copy_into(part, _slots(start, axis, row, low, high))
            return
        nbytes = (high - low) * array.strides[axis]
        if nbytes < PAGE_NBYTES or (row is not None and _inside(declared, 0)):
            zero(_slots(array, axis, row, low, high))
            return
        for start_nbytes in self._runs(state, row, low):
            self.arenas[declared.reset].clear(start_nbytes, nbytes)

    def give_back(self, state: int, low: int, row: int | None = None) -> None:
        """Give back whole pages of a state from slot `low` on, which hold zeros.

        `row` is an index on axis 0; None for all rows.
        """
        declared, array = self.states[state], self.arrays[state]
        axis = axis_of(declared)
        if row is not None and _inside(declared, 0):
            return  # the other rows have their slots in these pages
        high = array.shape[axis]
        nbytes = (high - low) * array.strides[axis]
        if declared.initial is None and nbytes >= PAGE_NBYTES:
            for start in self._runs(state, row, low):
                self.arenas[declared.reset].give_back(start, nbytes)

    def _runs(self, state: int, row: int | None, low: int) -> list[int]:
        """Return where the runs of bytes from a slot on begin in their arena."""
        place = self.layout.placements[state]
        found: list[int] = place.runs(self.states[state], low, row).tolist()
        return found

    def _fill(self, rule: ResetRule) -> None:
        for state, array in zip(self.states, self.arrays, strict=True):
            if state.reset is rule and state.initial is not None:
                copy_into(array, self._initial(state.initial))


def _inside(state: State, dim: int) -> bool:
    """Tell whether a dim lies within one slot in memory, not around the slots."""
    return state.layout.index(dim) >= state.layout.index(axis_of(state))


def _slots(array: Array, axis: int, row: int | None, low: int, high: int) -> Array:
    where = [slice(None)] * array.ndim
    if row is not None:
        where[0] = slice(row, row + 1)
    where[axis] = slice(low, high)
    return array[tuple(where)]
