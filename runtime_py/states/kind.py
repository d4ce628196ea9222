"""The interface of all kinds of states, and the description of a call for kinds.

In: the position of each row of the session, a method's writes of states, a call's
demand (the tokens and slots that it needs). Out: the undo of the call, how far rows can
be rewound, the slots that a fork needs, operations on single rows. A kind stores the
records that these operations need; the caller passes the positions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import add
from typing import ClassVar

from kvc.runtime.states.owner import ALL_SLOTS, WHOLE, Group, Span, Store
from kvc.schema.frozen import frozen
from kvc.schema.graph import Access, AccessMode
from kvc.schema.rings import Window
from kvc.schema.types import Dim


@frozen
class Write:
    """One write of a state.

    Attributes:
        state: the id of the state.
        access: the range and the mode of the write, as the bundle declares them.
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
        risks: the writes that the states' kind cannot undo without a copy.
        extents: the numbers of slots that the writes cover from the position on; None
            if the number is unknown for one of the writes.
        cursor: the cursor of the states; the first cursor if the states have none.
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
    """The tokens and slots that a call of known sizes needs in its session.

    Attributes:
        advance: the number of tokens that the call adds at `cursor`, None if the call
            does not advance that cursor.
        extents: for each of the method's `Writes`, the greatest number of slots from
            the position on.
        lengths: for each growing state: (state, length after the call, greatest length
            during the call).
        row_lengths: how many of the `advance` tokens each row adds, None if every row
            adds all.
        several: whether the demand is the total of several calls, and the demand of a
            single call is not known.
        cursor: the number of the cursor that `advance` refers to.
        others: the tokens added to other cursors, as pairs (cursor, tokens).
    """

    advance: int | None
    extents: tuple[int, ...]
    lengths: tuple[tuple[int, int, int], ...]
    row_lengths: tuple[int, ...] | None = None
    several: bool = False
    cursor: int = 0
    others: tuple[tuple[int, int], ...] = ()

    def added_to(self, cursor: int) -> "Demand":
        """Return the demand with the tokens added at `cursor` as its `advance`."""
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
        """Return, for each row, the slot after the last slot that a write covers.

        The write begins at the row's position in `starts`. `extent` is the slot count
        of the write, including padding.
        """
        if self.row_lengths is None or extent == ALL_SLOTS:
            return [start + extent for start in starts]
        return list(map(add, starts, self.row_lengths))


Undo = Callable[[], None]  # restores what a call may have written; called once


class Kind:
    """One group of states of a session; compared and hashed by identity.

    Attributes:
        undoes: the modes of writes that the kind can undo without a copy.
        copied: whether the states are copied before every call.
        placed: whether calls write the slots from the position on.
        grows: whether the states have a length, which calls change.
        recorded: the name of the header field that says how many slots a saved session
            has.
        longest: the greatest number of tokens that a call can add.
        window: the positions before a query's own that the query attends to, None for
            all.
        group: the states.
        store: the memory of the states.
        lengths: the lengths of all growing states of the session, by state id.
        reached: if `placed`, for each row the end of the slots that calls have written;
            later slots hold their initial content. Empty before the first call.
        ends: for each cursor that is not the states' own, the position of each row
            after the last call that wrote the states and advanced that cursor.
        snapshots: the number of last calls whose copies are stored for a rewind, if the
            kind needs copies.
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
        """Tell whether a rewind restores the states from copies made before calls."""
        return False

    @property
    def needs_copies(self) -> bool:
        """Tell whether a rewind to some position needs a copy kept there."""
        return False

    @property
    def kept_positions(self) -> Sequence[int]:
        """Return the positions of the first row at which copies are kept."""
        return ()

    @property
    def kept_nbytes(self) -> int:
        """Return how many bytes the kept copies take."""
        return 0

    def keep(self, starts: Sequence[int], most: int) -> None:
        """Keep a copy of the content, for a rewind to the positions `starts`.

        Only called if `needs_copies`, and for states of one row. The oldest of more
        than `most` copies are dropped.
        """

    def room(self, capacity: int | None, counts: bool) -> int:
        """Return the greatest length that growing states can have.

        Args:
            capacity: how many tokens a row of the session can hold, None for no limit.
            counts: whether the length of the states is the session's position; if so,
                the result is at most `capacity`.
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
        """Save the content that a call may overwrite.

        Args:
            writes: the method's writes of the states.
            extent: the number of slots of the write that covers most slots.
            starts: the position of each row before the call; None if the position is
                unknown.
            demand: the demand of the call.
            keeps: whether to copy content that cannot be restored without a copy.

        Returns:
            A function that undoes the call, except for writes that `lost` reports; None
            if there is nothing to undo.
        """
        if self.store.shared:
            self.store.note()
        if not (keeps or self.copied):
            return None
        return partial(self.store.write, WHOLE, self.store.read())

    def lost(self, writes: Writes, last: int, unplaced: bool) -> bool:
        """Tell whether a failed call leaves the states partly written after its undo.

        Args:
            writes: the method's writes of the states.
            last: the index of the last instruction that may have written, -1 for none.
            unplaced: whether the position before the call was unknown.
        """
        unknown = self.placed and unplaced and last >= 0
        return unknown or any(risk.instruction <= last for risk in writes.risks)

    def why_beside(
        self, cursor: int, counting: frozenset[str], ends: Sequence[int]
    ) -> str:
        """Return why the states prevent a rewind at another cursor, "" if they do not.

        The states allow the rewind if no call that is to be undone wrote them. For
        example, a rewind of the decoder does not affect a cache of the encoder's
        output.

        Args:
            cursor: the cursor to rewind, which is not that of the states.
            counting: the names of the methods that advance `cursor`.
            ends: the position of each row at `cursor` after the rewind.
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
        """Return why a rewind cannot undo calls that write the states, "" if it can.

        `counting` has the names of the methods that advance the position.
        """
        return ""

    def why_gone(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> str:
        """Return why rows cannot be rewound by `counts` tokens, "" if they can.

        Args:
            starts: the position of each row.
            counts: how many tokens of each row to drop.
            firsts: the position of each row in a new session.
        """
        return ""

    def most_rewindable(self, starts: Sequence[int]) -> Sequence[int]:
        """Return how many tokens of each row a rewind can drop; by default all."""
        return starts

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Drop the content after the positions `ends`, as if it had never been written.

        Args:
            starts: the position of each row before the rewind.
            ends: the position of each row after the rewind.
            firsts: the position of each row in a new session.
        """

    def trim(self, ends: Sequence[int] | None) -> None:
        """Free the memory of slots after the positions `ends`, one for each row.

        `ends` is None if the positions are unknown.
        """

    def held(self) -> int:
        """Return how many first slots a fork needs, at most."""
        return max(self.reached, default=0) if self.placed else ALL_SLOTS

    def forget(self) -> None:
        """Clear the records of past calls, after a reset of the content."""
        self.reached, self.ends = [], {}

    def follow(self, other: "Kind") -> None:
        """Copy the records of past calls from the same states of another session."""
        self.reached, self.ends = list(other.reached), dict(other.ends)

    def row_problem(self) -> str:
        """Return why single rows cannot be reset or copied, "" if they can."""
        name = self.group.first.name
        return "" if self.group.has_rows else f"{name} has no rows of its own"

    def reset_row(self, row: int) -> None:
        """Give one row the content that it has in a new session."""
        reached = self.reach([0] * self.store.shape[0])
        self.store.fill(Span(0, reached[row] if self.placed else ALL_SLOTS, row))
        reached[row] = 0
        self.reached = reached
        self.forget_row(row)

    def forget_row(self, row: int) -> None:
        """Clear the records of past calls of a row, whose content has been replaced."""
        self._take_ends(row, {})

    def take_row(self, row: int, other: "Kind", source: int, cut: int = 0) -> None:
        """Copy a row from other states of the same kind and shape.

        Args:
            row: the row to write.
            other: the states of the source row; may be the same object.
            source: the source row.
            cut: how many of its last tokens will be dropped, so need not be copied.
        """
        reached = other.reach([0] * other.store.shape[0])[source]
        reached = self.without(reached, cut)
        end = reached if self.placed else ALL_SLOTS
        mine = self.reach([0] * self.store.shape[0])
        ends = {cursor: rows[source] for cursor, rows in other.ends.items()}
        if mine[row] > end:
            self.store.fill(Span(end, mine[row], row))
        self.store.copy_row(Span(0, end, row), other.store, source)
        mine[row] = reached
        self.reached = mine
        self.forget_row(row)
        self._take_ends(row, ends)

    def without(self, reached: int, cut: int) -> int:
        """Return how many slots of a row are to be copied.

        Args:
            reached: the end of the slots that calls have written.
            cut: how many of the last tokens will be dropped.
        """
        return reached

    def _take_ends(self, row: int, ends: Mapping[int, int]) -> None:
        """Set one row in `self.ends`; 0 for a cursor at which no position is recorded.

        `ends` has the row's position at each cursor.
        """
        for cursor in self.ends.keys() | ends.keys():
            rows = list(self.ends.get(cursor, [0] * self.store.shape[0]))
            rows[row] = ends.get(cursor, 0)
            self.ends[cursor] = rows

    def reach(self, starts: Sequence[int]) -> list[int]:
        """Return for each row the end of the slots that calls have written.

        The end is at least the row's position, which `starts` has.
        """
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
        """Call an action for each row, with a span of that row's slots.

        If all rows have equal bounds, the action is called once for all rows. If the
        states have no rows, it is called once with the greatest bounds.

        Args:
            action: a function that takes the span.
            lows: the first slot of each row's span.
            highs: the slot after the last of each row's span.
        """
        spans = [
            Span(*span) for span in zip(lows, highs, range(len(lows)), strict=True)
        ]
        if len({span[:2] for span in spans}) == 1 or not self.group.has_rows:
            spans = [Span(max(lows, default=0), max(highs, default=0))]
        for span in spans:
            action(span)

    def copy(self, span: Span = WHOLE) -> Undo:
        """Copy the content of a span; return a function that writes it back."""
        return partial(self.store.write, span, self.store.read(span))
