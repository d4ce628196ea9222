"""States that calls may write anywhere.

In and out: as `kind.py`. A call overwrites the old content. So a failed call leaves
plain states partly written unless they were copied before the call, and a rewind is
only possible to a position of which a copy exists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.kind import Demand, Kind, Undo, Writes
from kvc.runtime.states.owner import WHOLE, Span
from kvc.schema.errors import listing
from kvc.schema.frozen import frozen
from kvc.schema.model import StateKind

_WHY_LOST: Final = {
    StateKind.PLAIN: "it is plain, and calls overwrite its old content",
    StateKind.LINEAR: "not every method writes it at the position",
    StateKind.RING: (
        "it is a ring without a window (compiler/WRITING_MODELS.md has which reads and "
        "writes of a ring give it one), and calls overwrite its old content"
    ),
}
_ASK: Final = "; a session with `snapshots` keeps copies"


@frozen
class _Snapshot:
    """The content of the states before a call.

    Attributes:
        starts: the position of each row when the copy was made; None if the row has
            been rewound or reset to an earlier position since.
        content: the copied content, [states, *shape], as `Store.read` returns it.
        ends: the value of `Kind.ends` when the copy was made.
    """

    starts: tuple[int | None, ...]
    content: Array
    ends: Mapping[int, Sequence[int]]


class Plain(Kind):
    """States that calls may write anywhere.

    Attributes:
        history: the copies made before the last calls, the oldest first; of each row
            those before the last calls that had tokens of the row.
        kept: the copies made at chosen positions, the oldest first.
    """

    history: tuple[_Snapshot, ...] = ()
    kept: tuple[_Snapshot, ...] = ()

    @property
    def by_copies(self) -> bool:
        return self.snapshots > 0 or bool(self.kept)

    @property
    def needs_copies(self) -> bool:
        return True

    @property
    def kept_positions(self) -> Sequence[int]:
        return [at for one in self.kept if (at := one.starts[0]) is not None]

    @property
    def kept_nbytes(self) -> int:
        return sum(one.content.nbytes for one in self.kept)

    def keep(self, starts: Sequence[int], most: int) -> None:
        made = _Snapshot(tuple(starts), self.store.read(), dict(self.ends))
        others = [one for one in self.kept if one.starts != made.starts]
        self.kept = (*others, made)[-most:]

    def begin(
        self,
        writes: Writes,
        extent: int,
        starts: Sequence[int] | None,
        demand: Demand,
        keeps: bool,
    ) -> Undo | None:
        undo = super().begin(writes, extent, starts, demand, keeps=False)
        if not keeps:
            return undo
        before, content = self.history, self.store.read()
        if self.snapshots and starts is not None and not demand.several:
            made = _Snapshot(tuple(starts), content, dict(self.ends))
            self.history = (*before, made)[-self.snapshots :]
            for row, count in enumerate(demand.row_lengths or ()):
                if count == 0 and self.group.has_rows:
                    self._leave_out(row, before)

        def put_back() -> None:
            self.store.write(WHOLE, content)
            self.history = before

        return put_back

    def _leave_out(self, row: int, before: Sequence[_Snapshot]) -> None:
        """Give a row, which a call does not change, the copies that it had before."""
        none = [None] * (len(self.history) - len(before))
        pairs = zip(self.history, [*none, *before], strict=True)
        self.history = tuple(_with_row(one, row, other) for one, other in pairs)

    def why_lost(self, counting: frozenset[str]) -> str:
        return "" if self.by_copies else _WHY_LOST[self.group.first.kind] + _ASK

    def why_gone(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> str:
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            end = start - count
            if count and end != firsts[row] and self._find(row, end) is None:
                kept = sorted(set(self._positions(row)))
                where = f" of row {row}" if len(starts) > 1 else ""
                found = (
                    f"at positions {listing(list(map(str, kept)))}"
                    if kept
                    else "nowhere"
                )
                return f"copies{where} were kept {found}, but not at {end}"
        return ""

    def most_rewindable(self, starts: Sequence[int]) -> Sequence[int]:
        return [
            start - min(self._positions(row), default=start)
            for row, start in enumerate(starts)
        ]

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end < start:
                self._put_back(row, end)
                self._forget(row, end)

    def forget(self) -> None:
        super().forget()
        self.history = self.kept = ()

    def follow(self, other: Kind) -> None:
        super().follow(other)
        assert isinstance(other, Plain)
        self.history, self.kept = other.history, other.kept

    def forget_row(self, row: int) -> None:
        super().forget_row(row)
        self._forget(row, -1)

    def _put_back(self, row: int, end: int) -> None:
        """Restore the content that a row had at an earlier position.

        If the states have no rows, restore their whole content. If no copy of that
        position exists, restore the initial content.
        """
        kept = self._find(row, end)
        span = Span(row=row) if self.group.has_rows else WHOLE
        if kept is None:
            self.store.fill(span)
        elif self.group.has_rows:
            self.store.write(span, kept.content[:, row : row + 1])
        else:
            self.store.write(span, kept.content)
        before = {} if kept is None else kept.ends
        for cursor, rows in self.ends.items():
            if row < len(rows):
                last = before[cursor][row] if cursor in before else 0
                self.ends[cursor] = [*rows[:row], last, *rows[row + 1 :]]

    def _find(self, row: int, position: int) -> _Snapshot | None:
        """Return the last copy that was made when a row was at a given position."""
        copies = (*self.kept, *self.history)
        found = (one for one in reversed(copies) if one.starts[row] == position)
        return next(found, None)

    def _positions(self, row: int) -> list[int]:
        copies = (*self.kept, *self.history)
        return [p for one in copies if (p := one.starts[row]) is not None]

    def _forget(self, row: int, end: int) -> None:
        """Mark the row as lost in the copies made after position `end` of that row."""

        def marked(one: _Snapshot) -> _Snapshot:
            starts = one.starts
            if (p := starts[row]) is None or p <= end:
                return one
            return replace(one, starts=(*starts[:row], None, *starts[row + 1 :]))

        self.history = tuple(map(marked, self.history))
        kept = map(marked, self.kept)
        self.kept = tuple(one for one in kept if any(p is not None for p in one.starts))


def _with_row(one: _Snapshot, row: int, other: _Snapshot | None) -> _Snapshot:
    """Return a copy with one row of another copy, or without the row."""
    starts = list(one.starts)
    if other is None:
        starts[row] = None
        return replace(one, starts=tuple(starts))
    starts[row] = other.starts[row]
    content = one.content.copy()
    content[:, row] = other.content[:, row]
    ends = {cursor: list(rows) for cursor, rows in one.ends.items()}
    for cursor, rows in ends.items():
        rows[row] = other.ends[cursor][row] if cursor in other.ends else 0
    return _Snapshot(tuple(starts), content, ends)
