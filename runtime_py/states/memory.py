"""The states of one session: their memory, their kinds, and their lengths.

In: the states a program declares, the sizes that a session fixed, the owner of the
memory. Out: one kind object per group of states, one buffer per state, which never
changes. `calls/transactions.py` decides when calls may happen, and what they may write.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from kvc.runtime.arrays import Array, prefix
from kvc.runtime.states.kind import Kind
from kvc.runtime.states.owner import ALL_SLOTS, Buffer, Group, Owner, Span
from kvc.runtime.states.table import kind_of
from kvc.schema.errors import Poisoned
from kvc.schema.model import Cursor, ResetRule, State
from kvc.schema.types import evaluate


class Copies(NamedTuple):
    """What a session copies before its calls, beside what kinds always copy.

    Attributes:
        transactional: what a call that fails could not put back otherwise.
        snapshots: of how many of the last calls the copies are kept, so that these can
            be forgotten.
    """

    transactional: bool = False
    snapshots: int = 0

    @property
    def wanted(self) -> bool:
        """Tell whether anything is copied."""
        return self.transactional or self.snapshots > 0


NONE: Final = Copies()


class StateMemory:
    """The states of one session; compared and hashed by identity.

    Attributes:
        states: as the program declares them.
        groups: those that are alike.
        sizes: of the symbols that the session fixed.
        capacity: greatest position, None where nothing limits it.
        copies: what calls copy that they could not put back otherwise.
        owner: of the memory.
        buffers: all of each state's memory; states that grow at their greatest length.
        lengths: of the states that grow along their axes, 0 for others; by state id.
        kinds: of the groups.
        limited: whether one of them limits how many tokens a call may add.
        growing: ids of the states that grow.
        counted: of each cursor, the position of each row where the session counts it.
        pending: tokens of each row that a generation has made and the states do not
            hold yet; empty where there are none.
        poisoned: name of the call that left states half written, or "".
        closed: whether the memory has been given back.
    """

    def __init__(
        self,
        states: Sequence[State],
        groups: Sequence[Group],
        owner: Owner,
        sizes: Mapping[str, int],
        capacity: int | None = None,
        rows: Sequence[int] = (1,),
        copies: Copies = NONE,
    ) -> None:
        """Take new memory; `rows` are those of each cursor that no state holds."""
        self.states, self.groups, self.owner = states, groups, owner
        self.sizes = dict(sizes)
        self.capacity, self.copies = capacity, copies
        buffers: dict[int, Buffer] = {}
        for group, store in zip(groups, owner.stores, strict=True):
            buffers.update(zip(group.states, store.buffers, strict=True))
        self.buffers = [buffers[state] for state in range(len(buffers))]
        self.lengths = [0] * len(states)
        self.kinds: Sequence[Kind] = [
            kind_of(group.first)(group, store, self.lengths)
            for group, store in zip(groups, owner.stores, strict=True)
        ]
        for kind in self.kinds:
            kind.snapshots = copies.snapshots
        grown = (kind.group.states for kind in self.kinds if kind.grows)
        self.growing = sorted(state for group in grown for state in group)
        self.counted: tuple[tuple[int, ...], ...] = tuple((0,) * n for n in rows)
        self.limited = any(kind.longest < ALL_SLOTS for kind in self.kinds)
        self.pending: tuple[tuple[int, ...], ...] = ()
        self.poisoned = ""
        self.closed = False

    def count(self, cursor: int, positions: tuple[int, ...]) -> None:
        """Set the position of each row at a cursor that the session counts."""
        before, after = self.counted[:cursor], self.counted[cursor + 1 :]
        self.counted = (*before, positions, *after)

    def room(self, cursors: Sequence[Cursor], cursor: int) -> int | None:
        """Return the greatest position at a cursor, None where nothing limits it."""
        if cursor == 0:
            return self.capacity
        capacity = cursors[cursor].capacity
        return None if capacity is None else evaluate(capacity, self.sizes)

    def fork(self, copies: Copies) -> "StateMemory":
        """Return memory that holds the same.

        Raises:
            OutOfMemory: the system gives no address space.
        """
        owner = self.owner.clone([kind.held() for kind in self.kinds])
        twin = StateMemory(
            self.states,
            self.groups,
            owner,
            self.sizes,
            self.capacity,
            tuple(map(len, self.counted)),
            copies,
        )
        for kind, other in zip(self.kinds, twin.kinds, strict=True):
            other.follow(kind)
        twin.lengths[:] = self.lengths
        twin.counted, twin.pending = self.counted, self.pending
        return twin

    def find(self, state: int) -> tuple[Kind, int]:
        """Return the kind of a state, and which of its states it is."""
        for kind in self.kinds:
            if state in kind.group.states:
                return kind, kind.group.states.index(state)
        raise AssertionError("every state is of a group")

    def current(self, state: int) -> Array:
        """Return what a state holds now: up to its length if it grows.

        On the host that is its memory, elsewhere a copy.
        """
        array, grows = self.buffers[state], state in self.growing
        if not isinstance(array, np.ndarray):
            kind, index = self.find(state)
            high = self.lengths[state] if grows else ALL_SLOTS
            return kind.store.read(Span(high=high, state=index))
        axis = self.states[state].axis
        if axis is None or not grows:
            return array
        shape = list(array.shape)
        shape[axis] = self.lengths[state]
        return prefix(array, tuple(shape))

    def first_counts(self, state: int) -> list[int]:
        """Return what a counter holds in a new session."""
        kind, index = self.find(state)
        counts: list[int] = kind.store.first(index).reshape(-1).tolist()
        return counts

    def check_usable(self) -> None:
        """Check that no call has left states half written.

        Raises:
            Poisoned: one has.
        """
        if self.poisoned:
            raise Poisoned(method=self.poisoned)

    def reset(self) -> None:
        """Give the pages of what a reset clears back, and copy initial values in.

        Where a call has left states half written, kept ones are lost as well, and
        begin anew.
        """
        rules = list(ResetRule) if self.poisoned else [ResetRule.INITIAL]
        self.poisoned = "reset"
        for rule in rules:
            self.owner.discard(rule)
        for kind in self.kinds:
            if kind.group.first.reset in rules:
                kind.forget()
                for state in kind.group.states:
                    self.lengths[state] = 0
        self.counted = tuple((0,) * len(rows) for rows in self.counted)
        self.settle()

    def settle(self) -> None:
        """Note that states are whole, once all that was asked for has been done."""
        self.owner.synchronise()
        self.poisoned = ""

    def close(self) -> None:
        """Let go of the memory; arrays that are still alive keep it."""
        self.closed = True
        self.owner.close()
        self.buffers, self.kinds = [], ()
