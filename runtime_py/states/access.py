"""How methods write states, and what a call needs: all that kinds know of a call.

In: what a method's file says of its writes, and the sizes of a call. Out: a summary of
the writes of each group of states, which a call begins and undoes together.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import add

from kvc.runtime.states.owner import ALL_SLOTS
from kvc.schema.frozen import frozen
from kvc.schema.model import Access
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
