"""Make a call all or nothing: save state bytes before it, restore them on failure.

In: the memory of a session, the state writes and demand of a call. Out: after success,
positions that include the call's tokens; after a failure, the session as it was before
the call. If the call has written a state that cannot be restored by resetting the
position, the session is poisoned instead: it refuses calls until a reset. Each kind of
state decides which bytes to save.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import add, sub

from kvc.runtime.calls.callers import Loan
from kvc.runtime.calls.contexts import run_bound
from kvc.runtime.calls.entries import MethodEntry
from kvc.runtime.calls.entry_checks import check_rows, too_long
from kvc.runtime.calls.inputs import Inputs
from kvc.runtime.execution.executor import Binding, RunProgress, fill_cursors
from kvc.runtime.states.kind import Demand, Undo, Writes
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.model import CursorKind


class Transaction:
    """One call on a usable session; made before the first write of the call.

    Attributes:
        starts: for each cursor, the position of each row before the call; None if the
            position is unknown.
        steps: for each cursor, how many tokens the call adds to each row.
    """

    __slots__ = (
        "_counted",
        "_demand",
        "_entry",
        "_memory",
        "_undo",
        "starts",
        "steps",
    )

    def __init__(self, entry: MethodEntry, demand: Demand, memory: StateMemory) -> None:
        """Check that the call can run, and save the bytes needed to undo it.

        Raises:
            CacheOverflow: the session has no room for the call's tokens.
            CallTooLong: the call has more tokens than a ring buffer allows.
            StateMismatch: the number of rows differs from that of the session.
        """
        starts_of = memory.known_positions()
        self.starts: Sequence[Sequence[int] | None] = starts_of
        own = starts_of[demand.cursor]
        if own is not None and demand.row_lengths is not None:
            check_rows(entry.method, demand, own)
        self.steps: list[Sequence[int]] = []
        demands = list(map(demand.added_to, range(len(starts_of))))
        for number, (starts, added) in enumerate(zip(starts_of, demands, strict=True)):
            self.steps.append(added.steps(len(starts) if starts is not None else 1))
            if starts is not None and added.advance is not None:
                memory.check_room(number, starts, self.steps[number])
        self._entry, self._demand, self._memory = entry, demand, memory
        self._counted = memory.counted
        kinds, keeps = memory.kinds, memory.copies.wanted
        for writes in entry.writes:
            most = max(self.steps[writes.cursor], default=0)
            if most > kinds[writes.group].longest and not writes.piecewise:
                raise too_long(entry.method, most, kinds[writes.group])
        self._undo: list[Undo | None] = []
        for writes, extent in zip(entry.writes, demand.extents, strict=True):
            kind, starts = kinds[writes.group], starts_of[writes.cursor]
            added = demands[writes.cursor]
            self._undo.append(kind.begin(writes, extent, starts, added, keeps))
        # Remains set until the call has succeeded or been undone: an interrupt may
        # strike at any point, also while a failure is being handled.
        memory.poisoned = entry.method.name

    def commit(self) -> None:
        """Advance the positions by the tokens of the call.

        Raises:
            CacheOverflow: loops in the method added more tokens than the session has
                room for.
            StateMismatch: a counter state is out of the range of positions.
        """
        memory = self._memory
        ends, loose = self._find_ends()
        for number, cursor in enumerate(memory.cursors):
            if cursor.kind is CursorKind.SESSION:
                rows = map(add, memory.counted[number], self.steps[number])
                memory.count(number, tuple(rows))
        self._note_ends(ends, loose)
        for state, length, _ in self._demand.lengths:
            memory.lengths[state] = length
        memory.poisoned = ""

    def _find_ends(self) -> tuple[dict[int, list[int]], list[int]]:
        """Find the positions that the call's cursors have after the call.

        Returns:
            Cursor -> new position of each row; and the cursors whose new position is
                known only from a counter state.

        Raises:
            CacheOverflow, StateMismatch: as `commit`.
        """
        found: dict[int, list[int]] = {}
        loose: list[int] = []
        for advance in self._entry.method.advances:
            number, starts = advance.cursor, self.starts[advance.cursor]
            if starts is None:
                continue
            if advance.tokens is not None:
                found[number] = list(map(add, starts, self.steps[number]))
                continue
            loose.append(number)
            found[number] = self._memory.position(number)
            added = list(map(sub, found[number], starts))
            self._memory.check_room(number, starts, added)
        return found, loose

    def _note_ends(self, ends: Mapping[int, list[int]], loose: Sequence[int]) -> None:
        """Report new positions to the kinds of states that record them.

        A kind records the positions of cursors that its states do not have. If a loop
        has advanced the cursor of the states, their kind records the position after the
        loop.
        """
        for writes in self._entry.writes:
            kind = self._memory.kinds[writes.group]
            if kind.placed and writes.cursor in loose:
                kind.reached = kind.reach(ends[writes.cursor])
            if writes.placed and len(self.starts) == 1:
                continue
            for number, positions in ends.items():
                if number != kind.group.first.cursor:
                    kind.ends[number] = positions

    def roll_back(self, progress: RunProgress, error: BaseException) -> None:
        """Restore the states that a failed call may have written.

        If some states cannot be restored, the session stays poisoned.
        """
        memory = self._memory
        memory.poisoned = self._entry.method.name
        memory.counted = self._counted
        with suppress(Exception):  # pending work may fail as the call has
            memory.owner.synchronise()
        _put_back(self._undo)
        memory.owner.synchronise()
        last = progress.last(error)
        lost = any(
            memory.kinds[writes.group].lost(
                writes, last, self.starts[writes.cursor] is None
            )
            for writes in self._entry.writes
        )
        if not lost or memory.copies.wanted:
            memory.poisoned = ""


@contextmanager
def all_or_nothing(
    entries: Sequence[MethodEntry], memory: StateMemory
) -> Iterator[None]:
    """Run several calls as one: if any of the calls fails, undo every call.

    Args:
        entries: the entries of the methods that are going to run.
        memory: the memory of a usable session.
    """
    starts_of = memory.known_positions()
    counted, none = memory.counted, Demand(None, (), (), several=True)
    chosen: dict[int, Writes] = {}
    for writes in (writes for entry in entries for writes in entry.writes):
        if writes.group not in chosen or writes.risks:
            chosen[writes.group] = writes
    ends = [dict(kind.ends) for kind in memory.kinds]
    undo = [
        memory.kinds[group].begin(writes, 0, starts_of[writes.cursor], none, keeps=True)
        for group, writes in chosen.items()
    ]
    try:
        yield
    except BaseException:
        memory.poisoned = memory.poisoned or "a call in pieces"  # until all is restored
        memory.counted = counted
        _put_back(undo)
        for kind, before in zip(memory.kinds, ends, strict=True):
            kind.ends = before
        memory.settle()
        raise


def _put_back(undo: Sequence[Undo | None]) -> None:
    for put_back in undo:
        if put_back is not None:
            put_back()


def run_on(
    entry: MethodEntry,
    binding: Binding,
    inputs: Inputs,
    loans: Sequence[Loan],
    states: StateMemory,
) -> list[object]:
    """Run a bound method on a session; if the run fails, undo the run's effects."""
    transaction = Transaction(entry, binding.demand, states)
    progress = RunProgress()
    try:
        if values := binding.frame.cursors:
            starts, steps = transaction.starts, transaction.steps
            if (rows := inputs.rows) is not None:
                starts = [None if one is None else rows.of(one) for one in starts]
                steps = [rows.of(one) for one in steps]
            fill_cursors(values, starts, steps, entry.method.name)
        results = run_bound(binding, inputs, loans, progress)
        transaction.commit()
    except BaseException as error:
        transaction.roll_back(progress, error)
        raise
    return results
