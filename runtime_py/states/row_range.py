"""`RowRange`: adjacent rows of a session, which a call can read and write alone.

In: the rows of a session, the states that have them on axis 0. Out: the part of a
state, or of a sequence with an entry for each row, that belongs to the range. A call of
some rows is a call of all rows in which the others have no tokens, computed for the
range alone.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from kvc.runtime.states.owner import Buffer
from kvc.schema.frozen import frozen

_Entry = TypeVar("_Entry")


@frozen
class RowRange:
    """Rows `first` to `first + count - 1` of a session; see `Session.some_rows`.

    Attributes:
        first: the first row.
        count: the number of rows, 1 or more.
        symbol: the name of the size that counts a session's rows.
        states: for each state of the program, whether it has the rows on axis 0.
    """

    first: int
    count: int
    symbol: str
    states: tuple[bool, ...]

    def sized(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a session with the number of these rows as its rows."""
        return {**sizes, self.symbol: self.count}

    def of(self, rows: Sequence[_Entry]) -> Sequence[_Entry]:
        """Return the entries of these rows."""
        return rows[self.first : self.first + self.count]

    def spread(self, lengths: Sequence[int], total: int) -> tuple[int, ...]:
        """Return row lengths of all `total` rows, 0 for those outside the range."""
        after = total - self.first - self.count
        return (*(0,) * self.first, *lengths, *(0,) * after)

    def parts(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Return of each state the memory of these rows."""
        end = self.first + self.count
        return [
            held[self.first : end] if own and isinstance(held, np.ndarray) else held
            for own, held in zip(self.states, buffers, strict=True)
        ]
