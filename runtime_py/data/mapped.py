"""Blobs in maps of their files: a page enters memory when it is first used.

In: open files. Out: places in one private copy-on-write map of each file. Blobs are
verified by reading the file, not the map, so verification touches no page of the map.
Pages that hold no blob in use are freed.

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
from collections import Counter
from typing import Final

from kvc.runtime.data.locations import ByteRange
from kvc.runtime.memory.arenas import NORESERVE
from kvc.runtime.memory.pages import PAGE_NBYTES, PageTable
from kvc.schema.container import OpenFile, StoredBlobs
from kvc.schema.errors import FileChanged, OutOfMemory
from kvc.schema.model import Blob

_LINUX: Final = sys.platform == "linux"


class MappedBlobs:
    """The blobs of a program in maps of their files; see `BlobMemory`."""

    def __init__(self, stored: StoredBlobs) -> None:
        self._stored = stored
        self._blobs = stored.program.blobs
        self.shown: list[OpenFile] = []
        self._files = tuple(MappedFile(file, self.shown) for file in stored.files)
        self._freed: list[int | None] = [0] * len(self._blobs)

    def take(self, blob: int) -> ByteRange:
        """Verify a blob, and map its file if necessary; see `BlobMemory.take`."""
        entry = self._blobs[blob]
        self._stored.files[entry.file].check_unchanged()
        self._stored.check(blob)
        return ByteRange(self._files[entry.file].use(entry), entry.offset)

    def give_back(self, blob: int) -> None:
        """Free the pages that hold no blob in use; the file still has their content."""
        entry = self._blobs[blob]
        nbytes, before = self._files[entry.file].give_back(entry), self._freed[blob]
        if nbytes is None or before is None:
            self._freed[blob] = None
        else:
            self._freed[blob] = before + nbytes

    def find(self, blob: int) -> ByteRange | None:
        """Return the place of a blob in the map of its file, None if no map exists."""
        entry = self._blobs[blob]
        whole = self._files[entry.file].found
        return None if whole is None else ByteRange(whole, entry.offset)

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many resident bytes of a blob were freed so far."""
        return self._freed[blob]

    def close(self) -> None:
        """Release the maps."""
        self.shown.clear()
        for file in self._files:
            file.close()


class MappedFile:
    """The map of one file, and how many blobs in use each page has.

    Attributes:
        found: the map, None before the first blob is used.
    """

    def __init__(self, file: OpenFile, shown: list[OpenFile]) -> None:
        """Store the file without mapping it; `use` maps it and adds it to `shown`."""
        self._file, self._shown = file, shown
        self._lock = threading.RLock()
        # Blobs in use for each page that several blobs may share.
        self._users: Counter[int] = Counter()
        self._used = 0
        self.found: mmap.mmap | None = None

    def use(self, blob: Blob) -> mmap.mmap:
        """Count a blob as in use, and return the map of the whole file.

        Raises:
            FileChanged: the file has changed since it was opened.
            OutOfMemory: the system provides no address space.
        """
        with self._lock:
            self._file.check_unchanged()
            if self.found is None:
                self.found = _map(self._file)
                self._shown.append(self._file)
            self._used += 1
            self._users.update(_edges(blob))
            return self.found

    def give_back(self, blob: Blob) -> int | None:
        """Mark a blob as not in use, and free its pages that no blob in use needs.

        Return how many bytes of the blob were resident in the freed pages, None if
        unknown.
        """
        with self._lock:
            first, end = self._count_out(blob)
            if self.found is None or first >= end:
                return 0
            nbytes = _resident(self.found, blob, first, end)
            if not self._used:
                # Linux reads neighbouring pages along with a page; these are freed,
                # too.
                first, end = 0, -(-self._file.size // PAGE_NBYTES)
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

    def close(self) -> None:
        """Release the map."""
        with self._lock:
            self.found = None


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
