"""What makes a call all or nothing: what is noted before it, and put back if it fails.

In: the memory of a session, what a call writes and asks for. Out: after success, the
session one call further; after a failure, the session as it was, or poisoned where a
state has been written that knowing the position cannot put back. What is noted of each
kind of state is for the kinds to say.
"""

from collections.abc import Sequence
from operator import add

from kvc.runtime.entries import Demand, Entry, check_room, check_rows
from kvc.runtime.executor import Progress
from kvc.runtime.positions import find_position
from kvc.runtime.states.kind import Call
from kvc.runtime.states.memory import StateMemory
from kvc.schema.errors import (
    CacheOverflow,
    CountOutOfRange,
    IndexOutOfRange,
    NoPosition,
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
        "_call",
        "_counted",
        "_entry",
        "_memory",
        "_position",
        "_undo",
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
        steps: Sequence[int] = ()
        if starts is not None:
            check_rows(entry.method, demand, starts)
            steps = demand.steps(len(starts))
            check_room(steps, starts, memory.capacity)
        self._entry, self._memory, self._position = entry, memory, position
        self._counted, kinds = memory.counted, memory.kinds
        self._call = call = Call(
            starts, steps, demand.counts, demand.lengths, memory.transactional
        )
        self._undo = [
            kinds[writes.group].begin(writes, extent, call)
            for writes, extent in zip(entry.writes, demand.extents, strict=True)
        ]
        # Stands until the call has ended one way or the other: an interrupt may come
        # at any point, while a failure is being handled too.
        memory.poisoned = entry.method.name

    def commit(self) -> None:
        """Count what the call has added."""
        memory, position = self._memory, self._position
        if position is not None and position.kind is CursorKind.SESSION:
            memory.counted = tuple(map(add, self._counted, self._call.steps))
        for state, length, _ in self._call.lengths:
            memory.lengths[state] = length
        memory.poisoned = ""

    def roll_back(self, progress: Progress, error: BaseException) -> None:
        """Put back what the call may have written, after it failed.

        States that cannot be put back leave the session poisoned.
        """
        memory, call = self._memory, self._call
        memory.poisoned = self._entry.method.name
        memory.counted = self._counted
        for undo in self._undo:
            if undo is not None:
                undo()
        clean = isinstance(error, _CLEAN) and not progress.inside
        last = progress.place - clean
        lost = any(
            memory.kinds[writes.group].lost(writes, last, call)
            for writes in self._entry.writes
        )
        if not lost or memory.transactional:
            memory.poisoned = ""


class Savepoint:
    """The memory of a session before several calls; a context manager.

    Where one of them fails, all is as it was. What cannot be put back by knowing the
    position is copied first.
    """

    def __init__(
        self, entries: Sequence[Entry], memory: StateMemory, starts: Sequence[int]
    ) -> None:
        """Note what is there.

        Args:
            entries: of the methods that are going to run.
            memory: of a session that can be used.
            starts: its positions.
        """
        self._memory, self._counted = memory, memory.counted
        risks: dict[int, bool] = {}
        for entry in entries:
            for writes in entry.writes:
                risks[writes.group] = risks.get(writes.group, False) or bool(
                    writes.risks
                )
        self._undo = [memory.kinds[g].hold(risk, starts) for g, risk in risks.items()]

    def __enter__(self) -> "Savepoint":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Bring back what was there, if an error comes."""
        if kind is None:
            return
        memory = self._memory
        memory.poisoned = memory.poisoned or "a call in parts"  # until all is back
        memory.counted = self._counted
        for undo in self._undo:
            undo()
        memory.poisoned = ""


def _starts(position: Cursor | None, memory: StateMemory) -> list[int] | None:
    """Return the position of each row, None where there is none."""
    if position is None:
        return None
    try:
        return find_position(position, memory)
    except NoPosition:
        return None
