"""Memory at fixed addresses for the library: reserved ranges and packed weights.

In: sizes in bytes. Out: addresses, and arrays over them. All memory is private and
anonymous; a page takes no physical memory before it is written.
"""

import mmap
from contextlib import suppress
from typing import Final

import numpy as np

from kvc.runtime.memory.arenas import ALIGN, NORESERVE, PAGE_NBYTES, align_up
from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.errors import OutOfMemory

HUGE_PAGE_NBYTES: Final = 2 << 20
CHUNK_NBYTES: Final = 64 << 20
TAIL_NBYTES: Final = 64  # more than kernels read past an operand
_HUGE_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)
_SMALL_ADVICE: Final = getattr(mmap, "MADV_NOHUGEPAGE", None)


class Region:
    """A range of reserved addresses, until `close` is called.

    Attributes:
        address: the start address; aligned to a huge page if the range uses huge pages.
        nbytes: size of the range; at least one more page can be read past it.
    """

    def __init__(self, nbytes: int, what: str, huge: bool = False) -> None:
        """Reserve a range; `what` describes its use, for messages.

        Raises:
            OutOfMemory: the system refuses to reserve address space.
        """
        self.nbytes = nbytes
        align = HUGE_PAGE_NBYTES if huge else PAGE_NBYTES
        length = align_up(nbytes, PAGE_NBYTES) + PAGE_NBYTES + align - PAGE_NBYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        try:
            self._map: mmap.mmap | None = mmap.mmap(-1, length, flags=flags)
        except (OSError, OverflowError, ValueError, MemoryError) as error:
            raise OutOfMemory(what=what, nbytes=nbytes) from error
        start = address_of(np.ndarray((0,), np.uint8, self._map))
        self._offset = -start % align
        self.address = start + self._offset
        advice = _HUGE_ADVICE if huge else _SMALL_ADVICE
        if advice is not None:
            with suppress(OSError):  # a kernel without huge pages refuses the advice
                whole = nbytes // align * align if huge else nbytes
                self._map.madvise(advice, self._offset, whole)

    def view(self, offset: int, nbytes: int) -> Array:
        """Return `nbytes` bytes of the range from `offset` on, uint8 [nbytes].

        The returned array keeps the range alive.
        """
        assert self._map is not None, "a closed range is not used"
        return np.ndarray((nbytes,), np.uint8, self._map, self._offset + offset)

    def discard(self) -> None:
        """Free all pages; the addresses stay reserved, and their bytes become zeros."""
        assert self._map is not None, "a closed range is not used"
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def discard_within(self, offset: int, nbytes: int) -> None:
        """Free the pages that lie wholly within a part of the range, if it is open."""
        start = align_up(self._offset + offset, PAGE_NBYTES)
        length = (self._offset + offset + nbytes) // PAGE_NBYTES * PAGE_NBYTES - start
        if self._map is not None and length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, length)

    def close(self) -> None:
        """Release the addresses once no array over them exists."""
        self._map = None


class Heap:
    """Memory for packed weights, in pages of 2 MiB. Used by one thread at a time.

    The memory exists as long as the heap, or a reference to a region of it.
    """

    def __init__(self) -> None:
        self._chunks: list[Region] = []
        self._used = 0  # of the last chunk

    def room(self, nbytes: int, readable: int = 0) -> int:
        """Return the aligned address of free bytes, which `take` can mark as used.

        At least `readable` bytes from this address on can be read as long as the heap
        exists, even after later calls of `room` and `take`.

        Raises:
            OutOfMemory: the system refuses more memory.
        """
        needed = max(nbytes, readable)
        if not self._chunks or self._used + needed > self._chunks[-1].nbytes:
            wanted = max(CHUNK_NBYTES, align_up(needed, HUGE_PAGE_NBYTES))
            self._chunks.append(Region(wanted, "packed weights", huge=True))
            self._used = 0
        return self._chunks[-1].address + self._used

    @property
    def region(self) -> Region:
        """Return the region of the last address of `room`."""
        return self._chunks[-1]

    def take(self, address: int, nbytes: int) -> None:
        """Mark bytes as used; `address` is the last one that `room` returned."""
        assert address == self._chunks[-1].address + self._used, "room was asked for"
        self._used = align_up(self._used + nbytes, ALIGN)

    def view(self, address: int, nbytes: int) -> Array:
        """Return the bytes at the last address of `room`, uint8 [nbytes]."""
        last = self._chunks[-1]
        return last.view(address - last.address, nbytes)

    def close(self) -> None:
        """Free all memory but the regions that are referred to elsewhere."""
        self._chunks.clear()


def padded_copy(array: Array) -> Array:
    """Return a contiguous aligned copy of an array, with readable zeros after it."""
    copy = padded(array.dtype, array.shape)
    np.copyto(bits(copy), bits(array))
    return copy


def padded(dtype: "np.dtype[np.generic]", shape: tuple[int, ...]) -> Array:
    """Return a contiguous aligned array of zeros, with readable bytes after it."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.zeros(count + ALIGN + TAIL_NBYTES, np.uint8)
    return np.ndarray(shape, dtype, memory, -address_of(memory) % ALIGN)


def bits(array: Array) -> Array:
    """Return an array as integers of the same size, which numpy copies fast."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array
