"""`MappedFile`: the map of one file, in which programs use blobs.

In: an open file. Out: a private copy-on-write map of it, made at the first use. Pages
that hold no blob in use are freed.

The maps are copy-on-write, since torch has no read-only tensors: a write by mistake
would crash the process on a read-only map; on a copy-on-write map it changes a private
page and never the file.

Some failures cannot be prevented. If a file is truncated after its last check, the use
of a page beyond the new end, even of a resident page, ends the process with SIGBUS.
Bytes that another program overwrites after the last check are seen, and so are
overwritten bytes of a file that keeps its size and times. Nothing is checked while a
user reads an array. Renaming the file is harmless.
"""

import mmap
import sys
import threading
import weakref
from collections import Counter
from typing import Final

from kvc.runtime.data.locations import ByteRange
from kvc.runtime.memory.arenas import NORESERVE
from kvc.runtime.memory.pages import PAGE_NBYTES, PageTable
from kvc.schema.container import OpenFile
from kvc.schema.errors import FileChanged, OutOfMemory
from kvc.schema.model import Blob

_LINUX: Final = sys.platform == "linux"


class MappedFile:
    """The map of one file, and how many blobs in use each page has.

    The map outlives the program that made it while another program uses the file.

    Attributes:
        found: the map, None before the first blob is used.
    """

    def __init__(self, lock: threading.RLock) -> None:
        """Store the lock for maps and counts; `use` maps the file."""
        self._lock = lock
        self._file: OpenFile | None = None
        # Blobs in use for each page that several blobs may share.
        self._users: Counter[int] = Counter()
        self._used = 0
        self.found: mmap.mmap | None = None

    def use(self, opened: OpenFile, blob: Blob) -> mmap.mmap:
        """Count a blob as in use, and return the map of the whole file.

        Args:
            opened: the file, as a program has opened it.
            blob: a blob of the file.

        Raises:
            FileChanged: the file has changed since it was opened.
            FileProblem: the system provides no descriptor.
            OutOfMemory: the system provides no address space.
        """
        with self._lock:
            opened.check_unchanged()
            if self.found is None:
                self.found = _map(opened)
                self._file = opened.again()
                weakref.finalize(self, self._file.close).atexit = False
            self._used += 1
            self._users.update(_edges(blob))
            return self.found

    def check_unchanged(self) -> None:
        """Check that the mapped file has not changed since it was opened.

        Raises:
            FileChanged: it has changed.
            FileProblem: the system does not report its status.
        """
        if self._file is not None:
            self._file.check_unchanged()

    def give_back(self, blob: Blob, measure: bool = True) -> int | None:
        """Mark a blob as not in use, and free its pages that no blob in use needs.

        Return how many bytes of the blob were resident in the freed pages, None if
        unknown or not to be measured.
        """
        with self._lock:
            first, end = self._count_out(blob)
            if self.found is None or first >= end:
                return 0
            nbytes = _resident(self.found, blob, first, end) if measure else None
            if not self._used:
                # Linux reads neighbouring pages along with a page; these are freed,
                # too.
                first, end = 0, -(-len(self.found) // PAGE_NBYTES)
            _discard(self.found, first, end)
            return nbytes

    def _count_out(self, blob: Blob) -> tuple[int, int]:
        """Mark a blob as not in use; return its pages that no blob in use needs."""
        self._used -= 1
        for page in _edges(blob):
            self._users[page] -= 1
            if not self._users[page]:
                del self._users[page]
        first, end = _pages(blob)
        return first + (first in self._users), end - (end - 1 in self._users)


def _map(file: OpenFile) -> mmap.mmap:
    """Map a whole file.

    Raises:
        FileChanged: the file has become shorter.
        OutOfMemory: the system provides no address space.
    """
    try:
        if not _LINUX:
            return mmap.mmap(file.fd, file.size, access=mmap.ACCESS_COPY)
        # Without reservation, since nearly none of its pages are ever written.
        flags = mmap.MAP_PRIVATE | NORESERVE
        return mmap.mmap(file.fd, file.size, flags=flags)
    except ValueError as error:
        raise FileChanged(path=file.path) from error
    except (OSError, MemoryError) as error:
        raise OutOfMemory(what=f"a map of {file.path}", nbytes=file.size) from error


def _discard(whole: mmap.mmap, first: int, end: int) -> None:
    """Free the pages from `first` to `end` of a map; the file keeps their content."""
    if _LINUX:
        nbytes = (end - first) * PAGE_NBYTES  # madvise stops at the end of the map
        whole.madvise(mmap.MADV_DONTNEED, first * PAGE_NBYTES, nbytes)


def _pages(blob: Blob) -> tuple[int, int]:
    """Return the first page of a blob, and the page after its last one."""
    return blob.offset // PAGE_NBYTES, -(-(blob.offset + blob.nbytes) // PAGE_NBYTES)


def _edges(blob: Blob) -> set[int]:
    """Return the first and last pages of a blob, which other blobs may share."""
    first, end = _pages(blob)
    return {first, end - 1} if blob.nbytes else set()


def _resident(whole: mmap.mmap, blob: Blob, first: int, end: int) -> int | None:
    """Return how many bytes of a blob are resident in pages `first` to `end`."""
    start = max(blob.offset, first * PAGE_NBYTES)
    stop = min(blob.offset + blob.nbytes, end * PAGE_NBYTES)
    with PageTable() as table:
        return table.resident_nbytes(ByteRange(whole, start).address, stop - start)
