"""Rings: which slots hold which positions, and how far back queries look.

The slots of a ring are reused, so that a text may have any length. Operators, kernels
and sessions find here where a position lies and which positions are still there.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """What a query over a ring sees.

    Attributes:
        size: how many positions, its own among them.
    """

    size: int

    def __str__(self) -> str:
        return str(self.size)

    def longest_call(self, slots: int) -> int:
        """Return how many tokens fit in a call, so that its first query sees all."""
        return slots - self.size + 1


def slot_runs(first: int, count: int, slots: int) -> Iterator[tuple[int, int]]:
    """Yield where positions lie in a ring: (first slot, how many slots), in order.

    Args:
        first: the first position; one before 0 lies where going round backwards leads.
        count: how many positions.
        slots: of the ring; 0 has no positions.
    """
    end = first + count
    while first < end:
        slot = first % slots
        run = min(end - first, slots - slot)
        yield slot, run
        first += run
