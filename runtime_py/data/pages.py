"""Pages: how much of a run of memory is resident, as Linux tells it."""

import mmap
import os
from collections.abc import Iterator
from typing import Final

import numpy as np

from kvc.schema.closing import Closing

PAGE_NBYTES: Final = mmap.PAGESIZE
_PATH: Final = "/proc/self/pagemap"  # Documentation/admin-guide/mm/pagemap.rst
_ENTRY_NBYTES: Final = 8
_PRESENT_BIT: Final = 63
_ENTRIES_AT_ONCE: Final = 1 << 17


class PageTable(Closing):
    """The page table of this process, open while it is looked at.

    On a system that does not show it, nobody can say what is resident.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def resident_nbytes(self, address: int, nbytes: int) -> int | None:
        """Return how many bytes of a run are in memory, None where nobody can say."""
        if self._fd < 0:
            return None
        if not nbytes:
            return 0
        end = address + nbytes
        first, last = address // PAGE_NBYTES, (end - 1) // PAGE_NBYTES
        total = 0
        for start, present in self._present(first, last + 1):
            total += int(np.count_nonzero(present)) * PAGE_NBYTES
            if start == first and present[0]:
                total -= address - first * PAGE_NBYTES
            if start + len(present) > last and present[-1]:
                total -= (last + 1) * PAGE_NBYTES - end
        return total

    def _present(self, first: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield page numbers, and whether the pages from there on are in memory."""
        while first < end:
            nbytes = min(end - first, _ENTRIES_AT_ONCE) * _ENTRY_NBYTES
            raw = os.pread(self._fd, nbytes, first * _ENTRY_NBYTES)
            if not raw:  # beyond what a process can have
                return
            entries = np.frombuffer(raw, np.uint64)
            yield first, entries >> np.uint64(_PRESENT_BIT) != 0
            first += len(entries)

    def close(self) -> None:
        """Stop looking."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
