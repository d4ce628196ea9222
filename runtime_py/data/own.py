"""Blobs in private memory: copies that later changes of the files do not affect.

In: open files. Out: a copy of each blob, read from its file and verified in memory.
Programs of this process that have equal blobs in use share one copy (`shared.py`).
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

from kvc.runtime.data.locations import ByteRange, Changing
from kvc.runtime.data.shared import SHARES, BlobKey, SharedBlob
from kvc.runtime.memory.arenas import ALIGN
from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.memory.pages import PAGE_NBYTES
from kvc.schema.container import StoredBlobs
from kvc.schema.errors import OutOfMemory

HUGE_PAGE_NBYTES: Final = 2 << 20
SMALL_NBYTES: Final = 64 << 10
_TAIL_NBYTES: Final = 64  # kernels may read a little past their operands
_HUGE_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


class OwnBlobs:
    """The blobs of a program in private memory; see `BlobMemory`."""

    def __init__(self, stored: StoredBlobs, huge: bool) -> None:
        self._stored = stored
        self.shown: tuple[Changing, ...] = ()  # no file is mapped
        self._blobs = stored.program.blobs
        self._huge = huge
        self._taken: dict[int, SharedBlob] = {}
        self._copies = [0] * len(self._blobs)
        self._alive: list[list[weakref.ref[object]]] = [[] for _ in self._blobs]

    def take(self, blob: int) -> ByteRange:
        """Read a blob into new memory and verify it there; see `BlobMemory.take`."""
        self._stored.files[self._blobs[blob].file].check_unchanged()
        shared = SHARES.enter(self._key(blob))
        try:
            with shared.lock:
                if shared.place is None:
                    shared.place = self._read(blob)
                self._count(blob, shared.place.owner)
                self._taken[blob] = shared
                return shared.place
        except BaseException:
            SHARES.leave(shared)
            raise

    def check(self, blob: int) -> None:
        """Do nothing: the files may change."""

    def give_back(self, blob: int) -> None:
        """Stop the use; memory is freed when the last program and array are gone."""
        shared = self._taken.pop(blob, None)
        if shared is not None:
            SHARES.leave(shared)

    def find(self, blob: int) -> ByteRange | None:
        """Return None: a blob without users is not in memory."""

    def sharers(self, blob: int) -> int:
        """Return how many other programs have a blob in use."""
        return SHARES.others(self._key(blob), self._taken.get(blob))

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many bytes of a blob were freed; all of them were resident."""
        gone = self._copies[blob] - len(self._living(blob))
        return gone * self._blobs[blob].nbytes

    def close(self) -> None:
        """Stop the use of all blobs."""
        for blob in tuple(self._taken):
            self.give_back(blob)

    def _read(self, blob: int) -> ByteRange:
        nbytes = self._blobs[blob].nbytes
        place = reserve(nbytes, self._huge)
        with place.view(nbytes) as target:
            self._stored.read_into(blob, target)
        return place

    def _count(self, blob: int, owner: object) -> None:
        """Note a copy in memory, unless this program had it before."""
        living = self._living(blob)
        if all(one() is not owner for one in living):
            self._copies[blob] += 1
            living.append(weakref.ref(owner))
        self._alive[blob] = living

    def _key(self, blob: int) -> BlobKey:
        entry = self._blobs[blob]
        return entry.digest, entry.nbytes, "huge" if self._huge else "read"

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
