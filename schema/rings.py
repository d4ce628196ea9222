"""Rings: which slots hold which positions, and how far back queries look.

The slots of a ring are reused, so that a text may have any length. A ring may keep its
first positions (attention sinks; Xiao et al., 2023): position p of the first `keep`
lies in slot p, and later positions reuse the slots after these. Operators, kernels and
sessions find here where a position lies and which positions are still there.
"""

from collections.abc import Iterator

from kvc.schema.frozen import frozen

_AND = " and the first "


@frozen
class Window:
    """What a query over a ring sees.

    Attributes:
        size: how many positions up to its own, which is one of them.
        keep: how many of the first positions it sees too, however far back they are.
    """

    size: int
    keep: int = 0

    def __str__(self) -> str:
        return f"{self.size}{_AND}{self.keep}" if self.keep else str(self.size)

    @classmethod
    def read(cls, text: str) -> "Window":
        """Return the window that a text says, as `str` writes it.

        Raises:
            ValueError: it is no such text.
        """
        size, _, keep = text.partition(_AND)
        return cls(int(size), int(keep or 0))

    def kept(self, end: int) -> int:
        """Return how many of the positions before `end` are kept for good."""
        return min(end, self.keep)

    def runs(self, first: int, count: int, slots: int) -> Iterator[tuple[int, int]]:
        """Yield where positions lie in a ring of so many slots; see `slot_runs`."""
        return slot_runs(first, count, slots, self.keep)

    def longest_call(self, slots: int) -> int:
        """Return how many tokens fit in a call, so that its first query sees all."""
        return slots - self.keep - self.size + 1


def can_keep(keep: int, mode: str, slots: int) -> bool:
    """Tell whether a cache can keep so many first positions: a ring, beside others."""
    return keep == 0 or (mode == "circular" and 0 < keep < slots)


def oldest(length: int, slots: int, keep: int) -> int:
    """Return the oldest position that is there after the kept ones."""
    return keep + max(0, length - slots)


def slot_runs(
    first: int, count: int, slots: int, keep: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield where positions lie in a ring: (first slot, how many slots), in order.

    Args:
        first: the first position; where none is kept, one before 0 lies where going
            round backwards leads.
        count: how many positions.
        slots: of the ring; 0 has no positions.
        keep: how many of the first positions it keeps, less than `slots`.
    """
    end = first + count
    while first < end:
        kept = 0 <= first < keep
        slot = first if kept else keep + (first - keep) % (slots - keep)
        run = min(end - first, slots - slot)
        yield slot, run
        first += run
