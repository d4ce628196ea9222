"""Count the resident pages of a run of memory, as Linux reports them.

In: addresses. Out: byte counts, or flags of pages.
"""

import mmap
import os
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.schema.closing import Closing

Flags = npt.NDArray[np.bool_]
Entries = npt.NDArray[np.uint64]

PAGE_NBYTES: Final = mmap.PAGESIZE
_PATH: Final = "/proc/self/pagemap"  # Documentation/admin-guide/mm/pagemap.rst
_ENTRY_NBYTES: Final = 8
_PRESENT_BIT: Final = 63
_SWAPPED_BIT: Final = 62
_FILE_BIT: Final = 61  # the page belongs to a file or to shared memory
_ALONE_BIT: Final = 56  # mapped exactly once: not shared, not the zero page
_ENTRIES_AT_ONCE: Final = 1 << 17


class PageTable(Closing):
    """Linux's page table of this process, read from a file of the system.

    On a system without such a file, the table cannot tell which pages are resident.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def resident_nbytes(self, address: int, nbytes: int) -> int | None:
        """Return how many bytes of a run are resident, None if unknown."""
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

    def own_pages(self, address: int, nbytes: int, alone: bool = False) -> Flags | None:
        """Tell for each page whether it is anonymous memory that has been written.

        The page may be resident or swapped out. In a private map of a file, the first
        write to a page makes the page anonymous.

        Args:
            address: the address of a page.
            nbytes: a multiple of the page size.
            alone: whether to exclude pages that another process shares, and pages that
                have only been read (the system maps a common page of zeros for them).

        Returns:
            A flag for each page, None if the system does not provide the table.
        """
        if self._fd < 0:
            return None
        first = address // PAGE_NBYTES
        found = np.zeros(nbytes // PAGE_NBYTES, np.bool_)
        for start, entries in self._entries(first, first + len(found)):
            there = _bit(entries, _PRESENT_BIT)
            if alone:
                there = there & _bit(entries, _ALONE_BIT)
            there = (there | _bit(entries, _SWAPPED_BIT)) & ~_bit(entries, _FILE_BIT)
            found[start - first : start - first + len(there)] = there
        return found

    def _present(self, first: int, end: int) -> Iterator[tuple[int, Flags]]:
        """Yield chunks of pages, as pairs: the first page's number, and the flags.

        The flag of a page tells whether the page is resident.
        """
        for start, entries in self._entries(first, end):
            yield start, _bit(entries, _PRESENT_BIT)

    def _entries(self, first: int, end: int) -> Iterator[tuple[int, Entries]]:
        """Yield chunks of pages, as pairs: first page number, table entries."""
        while first < end:
            nbytes = min(end - first, _ENTRIES_AT_ONCE) * _ENTRY_NBYTES
            raw = os.pread(self._fd, nbytes, first * _ENTRY_NBYTES)
            if not raw:  # beyond the address space of a process
                return
            entries = np.frombuffer(raw, np.uint64)
            yield first, entries
            first += len(entries)

    def close(self) -> None:
        """Close the page table."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _bit(entries: Entries, bit: int) -> Flags:
    found: Flags = (entries >> np.uint64(bit)) & np.uint64(1) != 0
    return found
