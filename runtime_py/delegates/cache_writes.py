"""Where the rows of a `kvc::cache_update` go, as the host knows before it is run."""

from collections.abc import Callable, Iterator

from kvc.runtime.delegates.host_checks import check_length, check_slots
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import CacheOverflow, IndexOutOfRange
from kvc.schema.frozen import frozen
from kvc.schema.rings import slot_runs

Read = Callable[[int], Array]  # the array of a value


@frozen
class Writes:
    """Where the rows of a `kvc::cache_update` go.

    Attributes:
        start: value of the first slot of each row, int64 [batch]; None for slot 0.
        lengths: value of how many rows count, int64 [batch]; None for all.
        rows: how many there are.
        slots: of the cache.
        mode: "linear" or "circular".
        keep: how many first positions a ring keeps.
    """

    start: int | None
    lengths: int | None
    rows: int
    slots: int
    mode: str
    keep: int

    def runs(self, read: Read, row: int) -> list[tuple[int, int, int]]:
        """Return (first new row, first slot, count) of what a batch row writes.

        Raises:
            IndexOutOfRange, CacheOverflow, RowLengthOutOfRange: it may not.
        """
        start = 0 if self.start is None else int(read(self.start)[row])
        count = count_of(read, self.lengths, self.rows, row)
        ring = self.mode == "circular"
        if not ring:
            check_slots(row, start, count, self.slots)
            return [(0, start, count)] if count else []
        if self.keep and start < 0:
            raise IndexOutOfRange(place="", index=start, size=self.slots)
        if count > self.slots - max(0, min(start, self.keep)):
            raise CacheOverflow(row=row, start=start, count=count, capacity=self.slots)
        return [*_numbered(slot_runs(start, count, self.slots, self.keep))]


def _numbered(runs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    done = 0
    for slot, count in runs:
        yield done, slot, count
        done += count


def count_of(read: Read, lengths: int | None, most: int, row: int) -> int:
    """Return how many of a row's tokens count.

    Args:
        read: returns arrays.
        lengths: value of how many count, int64 [batch]; None for all.
        most: how many there are.
        row: which row.

    Raises:
        RowLengthOutOfRange: less than none count, or more than there are.
    """
    count = most if lengths is None else int(read(lengths)[row])
    check_length(row, count, most)
    return count
