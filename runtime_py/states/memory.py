"""The states of one session: their memory, their kinds, how far they have come.

In: the states and cursors a program declares, the sizes that a session fixed, the owner
of the memory. Out: one kind object per group of states, one buffer per state, which
never changes; lengths, positions, and whether a call has room.
`calls/transactions.py` decides when calls may happen, and what they may write.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from kvc.runtime.memory.arrays import Array, prefix
from kvc.runtime.states.kind import Demand, Kind
from kvc.runtime.states.owner import ALL_SLOTS, Buffer, Group, Owner, Span
from kvc.runtime.states.table import kind_of
from kvc.schema.errors import (
    CacheOverflow,
    NoPosition,
    Poisoned,
    StateMismatch,
    listing,
)
from kvc.schema.model import Cursor, CursorKind, ResetRule, State
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
_FAR: Final = 1 << 62  # of a counter that lengths can be added to
_UNCOUNTED: Final = (
    "no state of this program counts tokens; for one that kvc recognizes write caches "
    "by torch.ops.kvc.cache_update, carry them, or name an input (Method(position=...))"
)


class StateMemory:
    """The states of one session; compared and hashed by identity.

    Attributes:
        states: as the program declares them.
        groups: those that are alike.
        cursors: as the program declares them; the first is the position.
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
        renewed: how often a reset was begun.
        written: whether a call, a file or another session has written them since.
        poisoned: name of the call that left states half written, or "".
        closed: whether the memory has been given back.
    """

    def __init__(
        self,
        states: Sequence[State],
        groups: Sequence[Group],
        owner: Owner,
        sizes: Mapping[str, int],
        cursors: Sequence[Cursor] = (),
        capacity: int | None = None,
        rows: Sequence[int] = (1,),
        copies: Copies = NONE,
    ) -> None:
        """Take new memory; `rows` are those of each cursor that no state holds."""
        self.states, self.groups, self.owner = states, groups, owner
        self.cursors = cursors
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
        self._places: dict[int, tuple[Kind, int]] = {}
        for kind in self.kinds:
            kind.snapshots = copies.snapshots
            for index, state in enumerate(kind.group.states):
                self._places[state] = kind, index
        grown = (kind.group.states for kind in self.kinds if kind.grows)
        self.growing = sorted(state for group in grown for state in group)
        self.counted: tuple[tuple[int, ...], ...] = tuple((0,) * n for n in rows)
        self.limited = any(kind.longest < ALL_SLOTS for kind in self.kinds)
        self.pending: tuple[tuple[int, ...], ...] = ()
        self.renewed = 0
        self.written = False
        self.poisoned = ""
        self.closed = False

    def position(self, cursor: int = 0) -> list[int]:
        """Return where each row stands at a cursor.

        Raises:
            NoPosition: nothing counts tokens, or what grows does not agree.
            StateMismatch: a counter is so far off that nothing can be added to it.
        """
        if cursor >= len(self.cursors):
            raise NoPosition(reason=_UNCOUNTED)
        match self.cursors[cursor].kind:
            case CursorKind.STATE:
                return self._counted_by_state(cursor)
            case CursorKind.SESSION:
                return list(self.counted[cursor])
            case CursorKind.LENGTH:
                return [self._common_length(cursor)] * len(self.counted[cursor])

    def known_position(self, cursor: int = 0) -> list[int] | None:
        """Return where each row stands at a cursor, None where nothing says it."""
        try:
            return self.position(cursor)
        except NoPosition:
            return None

    @property
    def hold_nothing(self) -> bool:
        """Tell whether they hold no token, and none is pending.

        Where nothing counts, only those hold nothing that nobody has written.
        """
        found = self.known_position()
        if found is None or self.pending or self.poisoned:
            return not (self.written or self.pending)
        state = self.cursors[0].state
        first = [0] * len(found) if state is None else self.first_counts(state)
        return found == first

    def known_positions(self) -> list[list[int] | None]:
        """Return where rows stand at each cursor, or at the one that is missing."""
        return list(map(self.known_position, range(max(1, len(self.cursors)))))

    def named_positions(self) -> dict[str, list[int]]:
        """Return the positions that are known by the names of their cursors."""
        found: dict[str, list[int]] = {}
        for number, cursor in enumerate(self.cursors):
            grown = (state.name for state in self.states if state.cursor == number)
            positions = self.known_position(number)
            if positions is not None:
                found[cursor.name or next(grown, "")] = positions
        return found

    def _counted_by_state(self, cursor: int) -> list[int]:
        state = self.cursors[cursor].state
        assert state is not None
        counts: list[int] = self.current(state).reshape(-1).tolist()
        if counts and not -_FAR < min(counts) <= max(counts) < _FAR:
            raise StateMismatch(
                method="any",
                state=self.states[state].name,
                expected=f"numbers from {-_FAR} to {_FAR}",
                found=str(counts),
            )
        return counts

    def _common_length(self, cursor: int) -> int:
        """Return the length of what grows at a cursor; of all at none, else."""
        own = [state for state in self.growing if self.states[state].cursor == cursor]
        loose = [state for state in self.growing if self.states[state].cursor is None]
        grown = own or loose
        lengths = list(map(self.lengths.__getitem__, grown))
        if len(set(lengths)) > 1:
            names = [self.states[state].name for state in grown]
            found = [f"{name} has {n}" for name, n in zip(names, lengths, strict=True)]
            reason = f"what grows has different lengths: {listing(found)}"
            raise NoPosition(reason=reason)
        return lengths[0] if lengths else 0

    def count(self, cursor: int, positions: tuple[int, ...]) -> None:
        """Set the position of each row at a cursor that the session counts."""
        before, after = self.counted[:cursor], self.counted[cursor + 1 :]
        self.counted = (*before, positions, *after)

    def room(self, cursor: int) -> int | None:
        """Return the greatest position at a cursor, None where nothing limits it."""
        if cursor == 0:
            return self.capacity
        capacity = self.cursors[cursor].capacity
        return None if capacity is None else evaluate(capacity, self.sizes)

    def check_room(
        self, cursor: int, starts: Sequence[int], steps: Sequence[int]
    ) -> None:
        """Check that a call's tokens fit after the positions of a cursor.

        Args:
            cursor: which one.
            starts: the position of each row.
            steps: tokens that the call adds to each row.

        Raises:
            CacheOverflow: they do not.
        """
        limit = self.room(cursor)
        if limit is None:
            return
        for row, (start, count) in enumerate(zip(starts, steps, strict=True)):
            if start + count > limit:
                raise CacheOverflow(row=row, start=start, count=count, capacity=limit)

    def check_growth(self, demand: Demand) -> None:
        """Check that states which grow have room for what a call asks.

        Raises:
            CacheOverflow: one has not.
        """
        by_length = bool(self.cursors) and self.cursors[0].kind is CursorKind.LENGTH
        capacities: dict[int, int] = {}
        for kind in self.kinds if demand.lengths else ():
            own = kind.group.first.cursor in (None, 0)
            limit = self.capacity if own else None
            room = kind.room(limit, by_length) if kind.grows else 0
            capacities |= dict.fromkeys(kind.group.states, room)
        for state, _, reach in demand.lengths:
            length, most = self.lengths[state], capacities[state]
            if reach > most:
                added = max(reach - length, 0)
                raise CacheOverflow(row=0, start=length, count=added, capacity=most)

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
            self.cursors,
            self.capacity,
            tuple(map(len, self.counted)),
            copies,
        )
        for kind, other in zip(self.kinds, twin.kinds, strict=True):
            other.follow(kind)
        twin.lengths[:] = self.lengths
        twin.counted, twin.pending = self.counted, self.pending
        twin.written = self.written
        return twin

    def find(self, state: int) -> tuple[Kind, int]:
        """Return the kind of a state, and which of its states it is."""
        return self._places[state]

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
        self.pending, self.renewed = (), self.renewed + 1
        for rule in rules:
            self.owner.discard(rule)
        for kind in self.kinds:
            if kind.group.first.reset in rules:
                kind.forget()
                for state in kind.group.states:
                    self.lengths[state] = 0
        self.counted = tuple((0,) * len(rows) for rows in self.counted)
        self.written = False
        self.settle()

    def settle(self) -> None:
        """Note that states are whole, once all that was asked for has been done."""
        self.owner.synchronise()
        self.poisoned = ""

    def close(self) -> None:
        """Let go of the memory; arrays that are still alive keep it."""
        self.closed = True
        self.owner.close()
        self.buffers, self.kinds, self._places = [], (), {}
