"""`RowMemory`: how many bytes the caches of one row take, known before it runs.

In: the states that a program declares, the sizes of its sessions. Out: bytes for a
number of tokens, in whole pages; and the greatest number of tokens for some bytes.
"""

import math
from collections.abc import Mapping
from itertools import takewhile

from kvc.runtime.memory.arenas import PAGE_NBYTES, align_up
from kvc.schema.frozen import frozen
from kvc.schema.model import State, StateKind


@frozen
class _Run:
    """Runs of memory that grow with the tokens of a row.

    Attributes:
        count: how many such runs a row has.
        slot_nbytes: the bytes of a token in one run.
        slots: the greatest number of tokens.
    """

    count: int
    slot_nbytes: int
    slots: int

    def nbytes(self, tokens: int) -> int:
        """Return the bytes of the runs, in whole pages."""
        used = min(tokens, self.slots) * self.slot_nbytes
        return self.count * align_up(used, PAGE_NBYTES)


class RowMemory:
    """The bytes that the states of one row take."""

    def __init__(self, states: Mapping[str, State], sizes: Mapping[str, int]) -> None:
        """Add up the states of a program, for a session of the given sizes."""
        alone = {**sizes, "batch": 1}
        self._runs: dict[tuple[int, int], int] = {}
        self._fixed = 0
        for state in states.values():
            shape, axis = state.type.shape(alone), state.axis
            nbytes = math.prod(shape) * state.type.dtype.itemsize
            if axis is None or state.kind is StateKind.PLAIN:
                self._fixed += nbytes
                continue
            outer = takewhile(lambda dim, at=axis: dim != at, state.layout)  # type: ignore[misc]
            count = math.prod(shape[dim] for dim in outer)
            key = (nbytes // (count * max(shape[axis], 1)), shape[axis])
            self._runs[key] = self._runs.get(key, 0) + count

    def nbytes(self, tokens: int) -> int:
        """Return the bytes of a row of so many tokens."""
        runs = (_Run(count, *key) for key, count in self._runs.items())
        return self._fixed + sum(run.nbytes(tokens) for run in runs)

    def most_tokens(self, nbytes: int, limit: int) -> int:
        """Return how many tokens fit into some bytes, at most `limit`; 0 if none do."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.nbytes(middle) <= nbytes:
                low = middle
            else:
                high = middle - 1
        return low
