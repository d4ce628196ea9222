"""The interface of all kinds of states, and all that kinds know of a call.

In: the position of each row of the session, what a method writes of states, what a call
needs. Out: what undoes the call, how far rows can be rewound, which slots a fork must
have, operations on single rows. A kind keeps what it has to know beside the content,
and does not find positions itself.
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
        state: its id.
        access: how, as the file says it.
        instruction: index of the one that writes.
    """

    state: int
    access: Access
    instruction: int


@frozen
class Writes:
    """What a method writes of the states of one group.

    Attributes:
        group: its number.
        risks: writes that the states cannot take back by themselves.
        extents: of all writes from the position on; None where one has none.
        cursor: the cursor that the states are at; the first where they are at none.
        placed: whether they are at one.
        piecewise: whether no write is of all tokens of a call, but of those of a turn.
    """

    group: int
    risks: tuple[Write, ...]
    extents: tuple[Dim, ...] | None
    cursor: int = 0
    placed: bool = True
    piecewise: bool = False


@frozen
class Demand:
    """What one call asks of its session, at the call's sizes.

    Attributes:
        advance: tokens that it adds to its cursor, None when it adds none.
        extents: for each of the method's `Writes`, the most slots from the position on.
        lengths: of each state that grows: (state, length after the call, greatest
            length on the way).
        row_lengths: how many of `advance` each row adds, None if all.
        several: whether these are calls in a row, of which nothing else is said.
        cursor: which cursor that is.
        others: what it adds to other cursors: (cursor, tokens).
    """

    advance: int | None
    extents: tuple[int, ...]
    lengths: tuple[tuple[int, int, int], ...]
    row_lengths: tuple[int, ...] | None = None
    several: bool = False
    cursor: int = 0
    others: tuple[tuple[int, int], ...] = ()

    def added_to(self, cursor: int) -> "Demand":
        """Return the same of a cursor."""
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
        """Return where what each row may write from its start on ends.

        `extent`: how many slots a write takes, padding too.
        """
        if self.row_lengths is None or extent == ALL_SLOTS:
            return [start + extent for start in starts]
        return list(map(add, starts, self.row_lengths))


Undo = Callable[[], None]  # puts back what a call may have written, once


class Kind:
    """States of a session that are alike; compared and hashed by identity.

    Attributes:
        undoes: ways of writing that are taken back without a copy.
        copied: whether every call copies them first.
        placed: whether calls write from the position on.
        grows: whether they have lengths.
        recorded: what a file of a session says of them beside their content.
        longest: how many tokens a call may add.
        window: what a query sees, None for all.
        group: which they are.
        store: their memory.
        lengths: of all states of the session that grow, by state id.
        reached: where they are `placed`, the furthest that each row was ever written up
            to: what comes after it is as it was at first. Empty before the first call.
        ends: of cursors that they are not at, where each row stood when a call that
            advanced the cursor last wrote them.
        snapshots: before how many of the last calls a copy is kept, where nothing else
            brings them back.
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
        """Tell whether they go back by copies, whatever cursor they are at."""
        return False

    def room(self, capacity: int | None, counts: bool) -> int:
        """Return how long they may become, if they grow.

        `counts`: whether a length is the position, which is at most `capacity`.
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
        """Note what a call may write, before it does.

        Args:
            writes: what its method writes of these states.
            extent: the most slots that one of these writes takes.
            starts: the position of each row before it; None where nothing counts.
            demand: what it asks for.
            keeps: whether what cannot be undone is to be copied.

        Returns:
            What puts it back, as far as `lost` says; None where nothing need be.
        """
        if self.store.shared:
            self.store.note()
        if not (keeps or self.copied):
            return None
        return partial(self.store.write, WHOLE, self.store.read())

    def lost(self, writes: Writes, last: int, unplaced: bool) -> bool:
        """Tell whether a call, once undone, has left them half written.

        Args:
            writes: what its method writes of these states.
            last: index of the last instruction that may have written, -1 for none.
            unplaced: whether nothing counted.
        """
        unknown = self.placed and unplaced and last >= 0
        return unknown or any(risk.instruction <= last for risk in writes.risks)

    def why_beside(
        self, cursor: int, counting: frozenset[str], ends: Sequence[int]
    ) -> str:
        """Return why rows cannot go back to `ends`, of a cursor that these are not at.

        They stand as long as no call is forgotten that wrote them: a cache of what an
        encoder made outlives tokens of the decoder.
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
        return f"a call that wrote it up to position {max(last)} would be forgotten"

    def why_lost(self, counting: frozenset[str]) -> str:
        """Return why calls cannot be forgotten, "" where they can.

        `counting`: names of the methods that add to the position.
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
        """Return by how many tokens each row can be rewound; here all."""
        return starts

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Drop what lies after the positions `ends`, as if it had never been written.

        Args:
            starts: the positions before.
            ends: the positions to go back to.
            firsts: those of a new session.
        """

    def trim(self, ends: Sequence[int] | None) -> None:
        """Give memory back that holds nothing after the positions, None without any."""

    def held(self) -> int:
        """Return how many slots, the first, a fork must have; there may be less."""
        return max(self.reached, default=0) if self.placed else ALL_SLOTS

    def forget(self) -> None:
        """Forget what was noted: they begin anew."""
        self.reached, self.ends = [], {}

    def follow(self, other: "Kind") -> None:
        """Take over what another has noted of equal states."""
        self.reached, self.ends = list(other.reached), dict(other.ends)

    def row_problem(self) -> str:
        """Return why rows cannot be taken one by one, "" where they can."""
        name = self.group.first.name
        return "" if self.group.has_rows else f"{name} has no rows of its own"

    def reset_row(self, row: int) -> None:
        """Make one row as it is in a new session."""
        reached = self.reach([0] * self.store.shape[0])
        self.store.fill(Span(0, reached[row] if self.placed else ALL_SLOTS, row))
        reached[row] = 0
        self.reached = reached
        self._take_ends(row, {})

    def take_row(self, row: int, other: "Kind", source: int) -> None:
        """Make one row as another row is, of states of this kind and shape.

        Args:
            row: to be written.
            other: who has the other row; may be these states.
            source: the other row.
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
        """Note where cursors of one row stood, 0 where no call has written it."""
        for cursor in self.ends.keys() | ends.keys():
            rows = list(self.ends.get(cursor, [0] * self.store.shape[0]))
            rows[row] = ends.get(cursor, 0)
            self.ends[cursor] = rows

    def reach(self, starts: Sequence[int]) -> list[int]:
        """Return how far each row was ever written, `starts` being positions."""
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
        """Do something to slots of each row, from one to before another.

        At once where rows are alike. States without rows end where the last row does.
        """
        spans = [
            Span(*span) for span in zip(lows, highs, range(len(lows)), strict=True)
        ]
        if len({span[:2] for span in spans}) == 1 or not self.group.has_rows:
            spans = [Span(max(lows, default=0), max(highs, default=0))]
        for span in spans:
            action(span)

    def copy(self, span: Span = WHOLE) -> Undo:
        """Return what writes back what a span holds now."""
        return partial(self.store.write, span, self.store.read(span))
