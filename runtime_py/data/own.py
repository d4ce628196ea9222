"""Blobs in private memory: copies that later changes of the files do not affect.

In: open files. Out: a copy of each blob, read from its file and verified in memory.
With `huge`, large blobs use pages of 2 MiB. Their memory is private and anonymous,
since the advice to use huge pages has no effect on the shared memory that Python's
`mmap` makes by default. Small blobs lie in the heap, so that they do not need a map for
each blob.

Memory is freed when the blob is not in use and no array over it is alive. Pages are
never returned before that, since they would read zeros.
"""

import mmap
import weakref
from contextlib import suppress
from typing import Final

import numpy as np

from kvc.runtime.data.locations import ByteRange
from kvc.runtime.memory.arenas import ALIGN
from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.memory.pages import PAGE_NBYTES
from kvc.schema.container import OpenFile, StoredBlobs
from kvc.schema.errors import OutOfMemory

HUGE_PAGE_NBYTES: Final = 2 << 20
SMALL_NBYTES: Final = 64 << 10
_TAIL_NBYTES: Final = 64  # kernels may read a little past their operands
_HUGE_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


class OwnBlobs:
    """The blobs of a program in private memory; see `BlobMemory`."""

    def __init__(self, stored: StoredBlobs, huge: bool) -> None:
        self._stored = stored
        self.shown: list[OpenFile] = []  # no file is mapped
        self._blobs = stored.program.blobs
        self._huge = huge
        self._taken = [0] * len(self._blobs)
        self._alive: list[list[weakref.ref[object]]] = [[] for _ in self._blobs]

    def take(self, blob: int) -> ByteRange:
        """Read a blob into new memory and verify it there; see `BlobMemory.take`."""
        entry = self._blobs[blob]
        self._stored.files[entry.file].check_unchanged()
        place = reserve(entry.nbytes, self._huge)
        with place.view(entry.nbytes) as target:
            self._stored.read_into(blob, target)
        self._taken[blob] += 1
        self._alive[blob] = [*self._living(blob), weakref.ref(place.owner)]
        return place

    def give_back(self, blob: int) -> None:
        """Do nothing: memory is freed when the last array over it is gone."""

    def find(self, blob: int) -> ByteRange | None:
        """Return None: a blob without users is not in memory."""

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many bytes of a blob were freed; all of them were resident."""
        gone = self._taken[blob] - len(self._living(blob))
        return gone * self._blobs[blob].nbytes

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _living(self, blob: int) -> "list[weakref.ref[object]]":
        """Return references to the blob's copies in memory that are still alive."""
        return [owner for owner in self._alive[blob] if owner() is not None]


def reserve(nbytes: int, huge: bool) -> ByteRange:
    """Return new memory for a blob of `nbytes` bytes.

    Raises:
        OutOfMemory: there is not enough memory.
    """
    try:
        if nbytes < SMALL_NBYTES:
            heap: Array = np.empty(nbytes + ALIGN + _TAIL_NBYTES, np.uint8)
            return ByteRange(heap, -address_of(heap) % ALIGN)
        if huge and nbytes >= HUGE_PAGE_NBYTES and _HUGE_ADVICE is not None:
            return _reserve_huge(nbytes, _HUGE_ADVICE)
        return ByteRange(_anonymous(nbytes + _TAIL_NBYTES), 0)
    except (OSError, MemoryError, OverflowError) as error:
        raise OutOfMemory(what="the data of a program", nbytes=nbytes) from error


def _reserve_huge(nbytes: int, advice: int) -> ByteRange:
    """Return memory that begins at a huge page.

    Bytes after the last whole huge page lie in ordinary pages, so that a blob does not
    take up to 2 MiB more memory than it has bytes.
    """
    owner = _anonymous(nbytes + _TAIL_NBYTES + HUGE_PAGE_NBYTES - PAGE_NBYTES)
    offset = -ByteRange(owner, 0).address % HUGE_PAGE_NBYTES
    with suppress(OSError):  # a kernel without huge pages rejects the advice
        owner.madvise(advice, offset, nbytes // HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES)
    return ByteRange(owner, offset)


def _anonymous(nbytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
