"""The host as the owner of states: reserved arenas, initial values, shared pages.

In: groups of states, the sizes that a session fixed, initial values. Out: a store for
each group, and arrays at fixed addresses for kernels. A reset frees all pages of an
arena at once; a clone maps the pages of the original (`memory/forking.py`).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.memory.arenas import PAGE_NBYTES, Arena
from kvc.runtime.memory.arrays import Array, Part, copy_into, own_copy, zero
from kvc.runtime.memory.forking import share_arena
from kvc.runtime.memory.intervals import Intervals
from kvc.runtime.memory.pages import PageTable
from kvc.runtime.states.layout import GroupLayout, lay_out, pages_of
from kvc.runtime.states.owner import (
    ALL_SLOTS,
    WHOLE,
    Buffer,
    Group,
    InitialValue,
    Span,
    Store,
)
from kvc.schema.model import ResetRule

_UNCHANGED = (ALL_SLOTS, 0)


class HostStore:
    """The memory of one group of states, in an arena; see `Store`.

    Attributes:
        layout: the layout of the group.
        shape: the shape of each state.
        slots: the slots of each state; 0 without a sequence axis.
        begins: whether some initial values are not zeros.
        shared: whether the store has been cloned, or is a clone.
        all: all states as one array, [states, *shape].
        buffers: the array of each state.
        changed: the range of slots that may differ from the last clone: (first, end).
    """

    def __init__(
        self, layout: GroupLayout, arena: Arena, initial: InitialValue
    ) -> None:
        self.layout, self.shape, self.slots = layout, layout.shape, layout.slots
        self.begins = layout.group.first.initial is not None
        self.shared, self.changed = False, _UNCHANGED
        self._arena, self._initial = arena, initial
        self.all = layout.all(arena)
        self.buffers: Sequence[Buffer] = [
            self.all[i, ...] for i in range(len(self.all))
        ]

    def read(self, span: Span = WHOLE, part: Part = ()) -> Array:
        held = self.all if span is WHOLE else self._part(self.all, span)
        return own_copy(held[(*part, ...)])

    def write(self, span: Span, content: Array, part: Part = ()) -> None:
        self.note(span.low, span.high)
        copy_into(self._part(self.all, span)[(*part, ...)], content)

    def copy_row(self, span: Span, other: Store, row: int) -> None:
        theirs = span._replace(row=row)
        if not isinstance(other, HostStore):
            self.write(span, other.read(theirs))
            return
        self.note(span.low, span.high)
        copy_into(self._part(self.all, span), other._part(other.all, theirs))

    def fill(self, span: Span) -> None:
        span = span._replace(low=max(span.low, 0))
        high = min(span.high, self.slots) if self.slots else span.high
        if span.low >= high:
            return
        self.note(span.low, high)
        if self.begins:
            self._fill_initial(span)
            return
        nbytes = (high - span.low) * self.layout.slot_nbytes
        if nbytes < PAGE_NBYTES or (span.row is not None and self.layout.mixes_rows()):
            zero(self._part(self.all, span))
            return
        for start in self.layout.runs(span).tolist():
            self._arena.clear(start, nbytes)

    def give_back(self, span: Span) -> None:
        span = span._replace(low=max(span.low, 0))
        nbytes = (min(span.high, self.slots) - span.low) * self.layout.slot_nbytes
        if self.begins or nbytes < PAGE_NBYTES:
            return
        if span.row is None or not self.layout.mixes_rows():
            for start in self.layout.runs(span).tolist():
                self._arena.give_back(start, nbytes)

    def note(self, low: int = 0, high: int = ALL_SLOTS) -> None:
        first, end = self.changed
        self.changed = min(first, low), max(end, high)

    def first(self, state: int) -> Array:
        initial = self.layout.group.declared[state].initial
        if initial is None:
            return np.zeros(self.shape, self.all.dtype)
        return self._initial(initial)

    def begin(self) -> None:
        """Write the initial values into the memory, which holds zeros."""
        if self.begins:
            self._fill_initial(WHOLE)

    def _fill_initial(self, span: Span) -> None:
        states = range(len(self.all)) if span.state is None else (span.state,)
        for state in states:
            part = self._part(self.all, span._replace(state=state))
            copy_into(part, self._part(self.first(state)[None], span._replace(state=0)))

    def _part(self, array: Array, span: Span) -> Array:
        """Return a view of what a span selects in an array [states, *shape]."""
        where: list[slice | int] = [slice(None)] * array.ndim
        if span.row is not None:
            where[1] = slice(span.row, span.row + 1)
        if self.layout.axis is not None:
            where[1 + self.layout.axis] = slice(span.low, span.high)
        if span.state is not None:
            where[0] = span.state
        return array[(*where, ...)]


class HostMemory:
    """The memory of all states of a session, on the host; see `Owner`.

    Attributes:
        stores: the stores of the groups.
        arenas: reset rule (whether a reset clears a state or keeps it) -> the arena of
            the states with that rule.
    """

    def __init__(
        self,
        layouts: Sequence[GroupLayout],
        nbytes: Mapping[ResetRule, int],
        initial: InitialValue,
    ) -> None:
        """Reserve memory that holds zeros; `nbytes` has the size of each arena.

        Raises:
            OutOfMemory: the system provides no address space.
        """
        self._again = layouts, nbytes, initial
        self.arenas: Mapping[ResetRule, Arena] = {
            rule: Arena(nbytes[rule], "the states of a session") for rule in ResetRule
        }
        self.stores: Sequence[HostStore] = [
            HostStore(layout, self.arenas[layout.group.first.reset], initial)
            for layout in layouts
        ]

    @classmethod
    def allocate(
        cls, groups: Sequence[Group], sizes: Mapping[str, int], initial: InitialValue
    ) -> "HostMemory":
        """Return memory that holds the initial values.

        Raises:
            OutOfMemory: the system provides no address space.
        """
        memory = cls(*lay_out(groups, sizes), initial)
        for store in memory.stores:
            store.begin()
        return memory

    def clone(self, held: Sequence[int]) -> "HostMemory":
        """Return memory with the same content, which shares pages where possible.

        `held` is as in `Owner.clone`.

        Raises:
            OutOfMemory: the system provides no address space.
        """
        twin = HostMemory(*self._again)
        for store in self.stores:  # first, since a failed clone may share pages
            store.shared = True
        try:
            with PageTable() as table:
                for rule, arena in self.arenas.items():
                    if arena.nbytes:
                        pages = (
                            self._held(rule, held),
                            pages_of(
                                (store.layout, store.changed)
                                for store in self.stores
                                if store.layout.group.first.reset is rule
                            ),
                        )
                        share_arena(arena, twin.arenas[rule], *pages, table)
        except BaseException:
            twin.close()
            raise
        for store in (*self.stores, *twin.stores):
            store.shared, store.changed = True, _UNCHANGED
        return twin

    def discard(self, rule: ResetRule) -> None:
        self.arenas[rule].discard()
        for store in self.stores:
            if store.layout.group.first.reset is rule:
                store.begin()

    def synchronise(self) -> None:
        pass  # host operations are complete when they return

    def close(self) -> None:
        """Release the memory, except what arrays that are still alive use."""
        self.arenas, self.stores = {}, ()

    def _held(self, rule: ResetRule, held: Sequence[int]) -> Intervals:
        """Return the pages of an arena whose content a clone needs.

        Args:
            rule: the reset rule of the arena's states.
            held: as in `Owner.clone`.
        """
        return pages_of(
            (store.layout, (0, ALL_SLOTS if store.begins else end))
            for store, end in zip(self.stores, held, strict=True)
            if store.layout.group.first.reset is rule
        )
