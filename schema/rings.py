"""Rings: which slots positions lie in, and which positions queries attend to.

The slots of a ring are reused, so that a text may have any length. A ring may keep its
first positions (attention sinks; Xiao et al., 2023): position p of the first `keep`
lies in slot p, and later positions reuse the other slots. Operators, kernels and
sessions use this module to find the slot of a position and the positions that are still
stored.
"""

from collections.abc import Iterator

from kvc.schema.frozen import frozen

_AND = " and the first "


@frozen
class Window:
    """The window of a query over a ring: the positions that the query attends to.

    Attributes:
        size: the number of positions, up to and including the query's own position.
        keep: the number of first positions that the query also attends to, at any
            distance.
    """

    size: int
    keep: int = 0

    def __str__(self) -> str:
        return f"{self.size}{_AND}{self.keep}" if self.keep else str(self.size)

    @classmethod
    def read(cls, text: str) -> "Window":
        """Parse a window from the text that `str` writes.

        Raises:
            ValueError: the text does not describe a window.
        """
        size, _, keep = text.partition(_AND)
        return cls(int(size), int(keep or 0))

    def kept(self, end: int) -> int:
        """Return the number of positions before `end` that are never overwritten."""
        return min(end, self.keep)

    def runs(self, first: int, count: int, slots: int) -> Iterator[tuple[int, int]]:
        """Yield the slots of positions in a ring with this window's `keep`.

        The arguments and results are those of `slot_runs`.
        """
        return slot_runs(first, count, slots, self.keep)

    def longest_call(self, slots: int) -> int:
        """Return the maximum number of tokens of a call on a ring of `slots` slots.

        After a longer call, the ring would no longer have the full window of the call's
        first query.
        """
        return slots - self.keep - self.size + 1


def can_keep(keep: int, mode: str, slots: int) -> bool:
    """Tell whether a cache of `slots` slots can keep its first `keep` positions."""
    return keep == 0 or (mode == "circular" and 0 < keep < slots)


def oldest(length: int, slots: int, keep: int) -> int:
    """Return the oldest position that a ring still stores after `length` positions.

    The first `keep` positions, which are always stored, do not count.
    """
    return keep + max(0, length - slots)


def slot_runs(
    first: int, count: int, slots: int, keep: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the slots of consecutive positions in a ring, in order.

    Slots that follow each other are one pair: (first slot, number of slots).

    Args:
        first: the first position; if no position is kept, it may be negative, and its
            slot is found modulo `slots`.
        count: the number of positions.
        slots: the number of slots of the ring; 0 has no positions.
        keep: the number of first positions that the ring keeps, less than `slots`.
    """
    end = first + count
    while first < end:
        kept = 0 <= first < keep
        slot = first if kept else keep + (first - keep) % (slots - keep)
        run = min(end - first, slots - slot)
        yield slot, run
        first += run
