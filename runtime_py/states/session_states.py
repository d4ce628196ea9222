"""The states of one session: their memory, their kinds, their positions.

In: the states and cursors that a program declares, the sizes that a session fixed, the
owner of the memory. Out: one kind object per group of states; one buffer per state, at
a fixed address; lengths and positions; checks that a call has room.
`calls/transactions.py` checks and undoes calls.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from kvc.runtime.memory.arrays import Array, prefix
from kvc.runtime.memory.intervals import lengths
from kvc.runtime.states.addresses import addresses_of
from kvc.runtime.states.host import HostStore
from kvc.runtime.states.kind import Demand, Kind
from kvc.runtime.states.layout import GroupLayout, pages_of
from kvc.runtime.states.owner import ALL_SLOTS, Buffer, Group, Owner, Span
from kvc.runtime.states.row_adapters import RowAdapters
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
    """The settings by which a session copies states before calls.

    Attributes:
        transactional: whether to copy content that a failed call could not restore.
        snapshots: how many of the last calls have copies stored for a rewind.
    """

    transactional: bool = False
    snapshots: int = 0

    @property
    def wanted(self) -> bool:
        """Tell whether the settings ask for any copies."""
        return self.transactional or self.snapshots > 0


NONE: Final = Copies()
_FAR: Final = 1 << 62  # bound of counter states, so that sums do not overflow
_UNCOUNTED: Final = (
    "no state of this program counts tokens; to have one, write caches by "
    "torch.ops.kvc.cache_update, carry them, or name an input (Method(position=...))"
)


class StateMemory:
    """The states of one session; compared and hashed by identity.

    Attributes:
        states: the states as the program declares them.
        groups: the groups of similar states.
        cursors: the cursors as the program declares them; the first is the position.
        sizes: the sizes of the symbols that the session fixed.
        capacity: how many tokens a row can hold, None if there is no limit.
        copies: which states are copied before calls, for an undo or a rewind.
        adapters: the adapters of the rows; None if the program has no slots.
        places: the addresses of the states; None if the host does not own all.
        owner: the owner of the memory.
        buffers: the whole memory of each state; for growing states at the greatest
            length.
        lengths: by state id, the length of a growing state along its axis; 0 for other
            states.
        kinds: the kind object of each group.
        limited: whether any kind limits how many tokens a call can add.
        growing: the ids of the growing states.
        counted: for each cursor, the position of each row, if the session counts the
            position.
        pending: the tokens of each row that a generation has made and the states do not
            hold yet; empty if there are none.
        renewed: the number of resets that have begun.
        written: whether a call, a file or a copied row has written the states since the
            last reset.
        keep_at: the position at which a generation keeps copies of its states, and the
            greatest number of copies; None for none.
        poisoned: the name of the method whose failed call left states partly written,
            or "".
        closed: whether the memory has been freed.
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
        adapters: RowAdapters | None = None,
    ) -> None:
        """Take over new memory for states.

        Args:
            states: the states as the program declares them.
            groups: the groups of similar states.
            owner: the owner of the memory.
            sizes: the sizes of the symbols that the session fixed.
            cursors: the cursors as the program declares them.
            capacity: how many tokens a row can hold, None if there is no limit.
            rows: the number of rows of each cursor.
            copies: which states to copy before calls.
            adapters: the adapters of the rows; None if the program has no slots.
        """
        self.adapters = adapters
        self.states, self.groups, self.owner = states, groups, owner
        self.cursors = cursors
        self.sizes = dict(sizes)
        self.capacity, self.copies = capacity, copies
        buffers: dict[int, Buffer] = {}
        for group, store in zip(groups, owner.stores, strict=True):
            buffers.update(zip(group.states, store.buffers, strict=True))
        self.buffers = [buffers[state] for state in range(len(buffers))]
        self.places = addresses_of(self.buffers, sizes)
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
        self.keep_at: tuple[int, int] | None = None
        self.poisoned = ""
        self.closed = False

    def position(self, cursor: int = 0) -> list[int]:
        """Return the position of each row at a cursor.

        Raises:
            NoPosition: the program has no position, or growing states differ in length.
            StateMismatch: a counter state is out of the range of positions.
        """
        if cursor >= len(self.cursors):
            raise NoPosition(reason=_UNCOUNTED)
        match self.cursors[cursor].kind:
            case CursorKind.STATE:
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
            case CursorKind.SESSION:
                return list(self.counted[cursor])
            case CursorKind.LENGTH:
                return [self._common_length(cursor)] * len(self.counted[cursor])

    def known_position(self, cursor: int = 0) -> list[int] | None:
        """Return the position of each row at a cursor, None if it is unknown."""
        try:
            return self.position(cursor)
        except NoPosition:
            return None

    @property
    def hold_nothing(self) -> bool:
        """Tell whether the states hold no token, and no token is pending.

        If the program has no position, only states that were never written hold no
        token.
        """
        found = self.known_position()
        if found is None or self.pending or self.poisoned:
            return not (self.written or self.pending)
        state = self.cursors[0].state
        first = [0] * len(found) if state is None else self.first_counts(state)
        return found == first

    def known_positions(self) -> list[list[int] | None]:
        """Return the position of each row at each cursor, None for unknown positions.

        A program without cursors has a single entry in the list.
        """
        return list(map(self.known_position, range(max(1, len(self.cursors)))))

    def named_positions(self) -> dict[str, list[int]]:
        """Return the known positions by the names of their cursors."""
        found: dict[str, list[int]] = {}
        for number, cursor in enumerate(self.cursors):
            grown = (state.name for state in self.states if state.cursor == number)
            positions = self.known_position(number)
            if positions is not None:
                found[cursor.name or next(grown, "")] = positions
        return found

    def _common_length(self, cursor: int) -> int:
        """Return the length that all growing states of a cursor have in common.

        If no growing state has that cursor, return the common length of the growing
        states without a cursor.

        Raises:
            NoPosition: the states have different lengths.
        """
        own = [state for state in self.growing if self.states[state].cursor == cursor]
        loose = [state for state in self.growing if self.states[state].cursor is None]
        grown = own or loose
        lengths = list(map(self.lengths.__getitem__, grown))
        if len(set(lengths)) > 1:
            names = [self.states[state].name for state in grown]
            found = [f"{name} has {n}" for name, n in zip(names, lengths, strict=True)]
            reason = f"growing states have different lengths: {listing(found)}"
            raise NoPosition(reason=reason)
        return lengths[0] if lengths else 0

    def count(self, cursor: int, positions: tuple[int, ...]) -> None:
        """Set the position of each row at a cursor that the session counts."""
        before, after = self.counted[:cursor], self.counted[cursor + 1 :]
        self.counted = (*before, positions, *after)

    def room(self, cursor: int) -> int | None:
        """Return how many tokens a row can hold at a cursor, None for no limit."""
        if cursor == 0:
            return self.capacity
        capacity = self.cursors[cursor].capacity
        return None if capacity is None else evaluate(capacity, self.sizes)

    def check_room(
        self, cursor: int, starts: Sequence[int], steps: Sequence[int]
    ) -> None:
        """Check that a row can hold the tokens that a call adds to its position.

        Args:
            cursor: the number of the cursor.
            starts: the position of each row.
            steps: how many tokens the call adds to each row.

        Raises:
            CacheOverflow: a row has too little room.
        """
        limit = self.room(cursor)
        if limit is None:
            return
        for row, (start, count) in enumerate(zip(starts, steps, strict=True)):
            if start + count > limit:
                raise CacheOverflow(row=row, start=start, count=count, capacity=limit)

    def check_growth(self, demand: Demand) -> None:
        """Check that growing states have room for the demand of a call.

        Raises:
            CacheOverflow: a state has too little room.
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
        """Return new memory of states with the same content.

        Raises:
            OutOfMemory: the system provides no address space.
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
            self.adapters and RowAdapters(self.adapters.loaded, self.adapters.rows),
        )
        for kind, other in zip(self.kinds, twin.kinds, strict=True):
            other.follow(kind)
        twin.lengths[:] = self.lengths
        twin.counted, twin.pending = self.counted, self.pending
        twin.written = self.written
        return twin

    def find(self, state: int) -> tuple[Kind, int]:
        """Return the kind object of a state, and the state's index in its group."""
        return self._places[state]

    def current(self, state: int) -> Array:
        """Return the present content of a state, up to its length if it grows.

        For a state in host memory the result is a view, for other states a copy.
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
        """Return the values of a counter state in a new session, one for each row."""
        kind, index = self.find(state)
        counts: list[int] = kind.store.first(index).reshape(-1).tolist()
        return counts

    def check_usable(self) -> None:
        """Check that the session is not poisoned.

        Raises:
            Poisoned: a failed call has left states partly written.
        """
        if self.poisoned:
            raise Poisoned(method=self.poisoned)

    def reset(self) -> None:
        """Free the pages of the states that a reset clears, and write initial values.

        If the session is poisoned, states that a reset normally keeps are cleared too.
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
        if self.adapters is not None:
            self.adapters.write(self)
        self.settle()

    def settle(self) -> None:
        """Wait for pending work, then mark the states as complete."""
        self.owner.synchronise()
        self.poisoned = ""

    def foretold_nbytes(self, tokens: int) -> int:
        """Return the bytes that the states take when each row holds some tokens.

        In host memory they are those of whole pages.
        """
        spans: dict[ResetRule, list[tuple[GroupLayout, tuple[int, int]]]] = {}
        elsewhere = 0
        for kind in self.kinds:
            end = tokens if kind.placed or kind.grows else ALL_SLOTS
            store, rule = kind.store, kind.group.first.reset
            if isinstance(store, HostStore):
                spans.setdefault(rule, []).append((store.layout, (0, end)))
                continue
            share = min(end, store.slots) / store.slots if store.slots else 1
            size = math.prod(store.shape) * kind.group.first.type.dtype.itemsize
            elsewhere += len(kind.group.states) * round(size * share)
        pages = (lengths(pages_of(found)) for found in spans.values())
        return elsewhere + sum(int(found.sum()) for found in pages)

    def close(self) -> None:
        """Release the memory, except what arrays that are still alive use."""
        self.closed = True
        if self.adapters is not None:
            self.adapters.rows = ()
        self.owner.close()
        self.buffers, self.kinds, self._places = [], (), {}
        self.places = None
