"""The interface of all kinds of states, and the description of a call for them.

In: the position of each row of the session, a method's writes of states, a call's
demand. Out: the undo of the call, how far rows can be rewound, the slots that a fork
needs, operations on single rows. A kind keeps the records that this needs beside the
content; positions are passed to it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import add
from typing import ClassVar

from kvc.runtime.states.owner import ALL_SLOTS, WHOLE, Group, Span, Store
from kvc.schema.frozen import frozen
from kvc.schema.model import Access, AccessMode
from kvc.schema.rings import Window
from kvc.schema.types import Dim


@frozen
class Write:
    """One write of a state.

    Attributes:
        state: the id of the state.
        access: the range and mode of the write, as the file declares it.
        instruction: the index of the instruction that writes.
    """

    state: int
    access: Access
    instruction: int


@frozen
class Writes:
    """A method's writes of the states of one group.

    Attributes:
        group: the number of the group.
        risks: the writes that the kind cannot undo without a copy.
        extents: the slot counts of all writes, from the position on; None if a write
            has no such count.
        cursor: the cursor of the states; the first if they have none.
        placed: whether the states have a cursor.
        piecewise: whether each write covers the tokens of one loop iteration, not all
            tokens of the call.
    """

    group: int
    risks: tuple[Write, ...]
    extents: tuple[Dim, ...] | None
    cursor: int = 0
    placed: bool = True
    piecewise: bool = False


@frozen
class Demand:
    """The tokens and slots that one call needs in its session, at the call's sizes.

    Attributes:
        advance: the tokens added to `cursor`, None if none are added.
        extents: for each of the method's `Writes`, the most slots from the position on.
        lengths: for each growing state: (state, length after the call, greatest
            length during the call).
        row_lengths: how many of `advance` each row adds, None if all.
        several: whether this stands for several calls in a row, whose own demands are
            not known.
        cursor: the cursor that `advance` counts for.
        others: the tokens added to other cursors: (cursor, tokens).
    """

    advance: int | None
    extents: tuple[int, ...]
    lengths: tuple[tuple[int, int, int], ...]
    row_lengths: tuple[int, ...] | None = None
    several: bool = False
    cursor: int = 0
    others: tuple[tuple[int, int], ...] = ()

    def added_to(self, cursor: int) -> "Demand":
        """Return this demand as seen by one cursor."""
        if cursor == self.cursor:
            return self
        return replace(self, advance=dict(self.others).get(cursor), row_lengths=None)

    def steps(self, rows: int) -> Sequence[int]:
        """Return how many tokens the call adds to each row."""
        return (
            (self.advance or 0,) * rows
            if self.row_lengths is None
            else self.row_lengths
        )

    def ends(self, starts: Sequence[int], extent: int) -> Sequence[int]:
        """Return the end of the slots that each row may write from its start on.

        `extent` is the slot count of a write, including padding.
        """
        if self.row_lengths is None or extent == ALL_SLOTS:
            return [start + extent for start in starts]
        return list(map(add, starts, self.row_lengths))


Undo = Callable[[], None]  # restores what a call may have written; called once


class Kind:
    """One group of states of a session; compared and hashed by identity.

    Attributes:
        undoes: the modes of writes that are undone without a copy.
        copied: whether every call copies the states first.
        placed: whether calls write from the position on.
        grows: whether the states have lengths.
        recorded: the header field of a saved session that describes their extent.
        longest: how many tokens a call may add.
        window: the window of positions that a query sees, None for all.
        group: the states.
        store: their memory.
        lengths: the lengths of all growing states of the session, by state id.
        reached: if `placed`, the furthest position written in each row; later slots
            hold their initial content. Empty before the first call.
        ends: for each other cursor, the position of each row when a call that advanced
            that cursor last wrote these states.
        snapshots: how many of the last calls are preceded by a copy, if the kind cannot
            undo them otherwise.
    """

    undoes: ClassVar[frozenset[AccessMode]] = frozenset()
    copied: ClassVar[bool] = False
    placed: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    recorded: ClassVar[str] = ""  # "written", "reached" or "lengths"

    def __init__(self, group: Group, store: Store, lengths: list[int]) -> None:
        self.group, self.store, self.lengths = group, store, lengths
        self.snapshots = 0
        self.reached: list[int] = []
        self.ends: dict[int, list[int]] = {}
        self.longest = ALL_SLOTS
        self.window: Window | None = None

    @property
    def by_copies(self) -> bool:
        """Tell whether a rewind restores copies, whatever cursor the states have."""
        return False

    def room(self, capacity: int | None, counts: bool) -> int:
        """Return the greatest length of the states, if they grow.

        `counts` tells whether their length is the position, which is at most
        `capacity`.
        """
        return self.store.slots

    def begin(
        self,
        writes: Writes,
        extent: int,
        starts: Sequence[int] | None,
        demand: Demand,
        keeps: bool,
    ) -> Undo | None:
        """Save what a call may overwrite, before the call.

        Args:
            writes: the method's writes of these states.
            extent: the most slots that one of these writes covers.
            starts: the position of each row before the call; None if unknown.
            demand: the demand of the call.
            keeps: whether to copy content that cannot be undone otherwise.

        Returns:
            A function that undoes the call, except for the writes that `lost` reports;
            None if nothing needs to be undone.
        """
        if self.store.shared:
            self.store.note()
        if not (keeps or self.copied):
            return None
        return partial(self.store.write, WHOLE, self.store.read())

    def lost(self, writes: Writes, last: int, unplaced: bool) -> bool:
        """Tell whether a failed call leaves the states partly written after the undo.

        Args:
            writes: the method's writes of these states.
            last: the index of the last instruction that may have written, -1 for none.
            unplaced: whether the position was unknown.
        """
        unknown = self.placed and unplaced and last >= 0
        return unknown or any(risk.instruction <= last for risk in writes.risks)

    def why_beside(
        self, cursor: int, counting: frozenset[str], ends: Sequence[int]
    ) -> str:
        """Return why rows cannot go back to `ends` of another cursor, "" if they can.

        They can if no undone call wrote these states: the cache of an encoder's output
        outlives tokens of the decoder.
        """
        writers = self.group.writers
        if not writers & counting:
            return ""
        if writers >= counting:
            reason = "it is at another cursor, which the same calls advance"
            return self.why_lost(counting) or reason
        last = self.ends.get(cursor, ())
        if all(end >= least for end, least in zip(ends, last, strict=False)):
            return ""
        return f"a call that wrote it up to position {max(last)} would be undone"

    def why_lost(self, counting: frozenset[str]) -> str:
        """Return why calls cannot be undone later, "" if they can.

        `counting` has the names of the methods that advance the position.
        """
        return ""

    def why_gone(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> str:
        """Return why rows cannot be rewound that far, "" if they can.

        Args:
            starts: the position of each row.
            counts: by how many tokens to rewind each row.
            firsts: the positions of a new session.
        """
        return ""

    def most_rewindable(self, starts: Sequence[int]) -> Sequence[int]:
        """Return by how many tokens each row can be rewound; by default all."""
        return starts

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Drop the content after the positions `ends`, as if it had never been written.

        Args:
            starts: the positions before.
            ends: the positions to go back to.
            firsts: the positions of a new session.
        """

    def trim(self, ends: Sequence[int] | None) -> None:
        """Free memory after the positions `ends`; None if the positions are unknown."""

    def held(self) -> int:
        """Return how many of the first slots a fork needs at most."""
        return max(self.reached, default=0) if self.placed else ALL_SLOTS

    def forget(self) -> None:
        """Clear the records, after the content has been reset."""
        self.reached, self.ends = [], {}

    def follow(self, other: "Kind") -> None:
        """Take over the records of another session's equal states."""
        self.reached, self.ends = list(other.reached), dict(other.ends)

    def row_problem(self) -> str:
        """Return why single rows cannot be handled, "" if they can."""
        name = self.group.first.name
        return "" if self.group.has_rows else f"{name} has no rows of its own"

    def reset_row(self, row: int) -> None:
        """Reset one row to its content in a new session."""
        reached = self.reach([0] * self.store.shape[0])
        self.store.fill(Span(0, reached[row] if self.placed else ALL_SLOTS, row))
        reached[row] = 0
        self.reached = reached
        self._take_ends(row, {})

    def take_row(self, row: int, other: "Kind", source: int) -> None:
        """Copy a row of states of this kind and shape to a row of these states.

        Args:
            row: the row to write.
            other: the states of the source row; may be these states.
            source: the source row.
        """
        reached = other.reach([0] * other.store.shape[0])[source]
        span = Span(0, reached if self.placed else ALL_SLOTS, row)
        content = other.store.read(span._replace(row=source))
        ends = {cursor: rows[source] for cursor, rows in other.ends.items()}
        self.reset_row(row)
        self.store.write(span, content)
        self.reached[row] = reached
        self._take_ends(row, ends)

    def _take_ends(self, row: int, ends: Mapping[int, int]) -> None:
        """Set the recorded cursor positions of one row, 0 if no call has written it."""
        for cursor in self.ends.keys() | ends.keys():
            rows = list(self.ends.get(cursor, [0] * self.store.shape[0]))
            rows[row] = ends.get(cursor, 0)
            self.ends[cursor] = rows

    def reach(self, starts: Sequence[int]) -> list[int]:
        """Return the furthest written position of each row, at least `starts`."""
        found: Sequence[int] = self.reached
        if len(found) != len(starts):
            found = [max(found, default=0)] * len(starts)
        return list(map(max, found, starts))

    def by_row(
        self,
        action: Callable[[Span], None],
        lows: Sequence[int],
        highs: Sequence[int],
    ) -> None:
        """Apply an action to the slots of each row, from its low to before its high.

        Equal spans are handled at once. States without rows take the greatest bounds.
        """
        spans = [
            Span(*span) for span in zip(lows, highs, range(len(lows)), strict=True)
        ]
        if len({span[:2] for span in spans}) == 1 or not self.group.has_rows:
            spans = [Span(max(lows, default=0), max(highs, default=0))]
        for span in spans:
            action(span)

    def copy(self, span: Span = WHOLE) -> Undo:
        """Return a function that writes the present content of a span back."""
        return partial(self.store.write, span, self.store.read(span))
