"""Reserved address space: memory whose pages appear only when they are written.

In: a number of bytes. Out: arrays at fixed offsets, and a way to free pages. The memory
is private and anonymous, without reserved swap space and without huge pages. So opening
a large arena takes microseconds, and the first token does not allocate the whole cache
(measured: 3353 ms and 377 MB with huge pages, 1 ms and 2 MB without).
"""

import mmap
import sys
from contextlib import suppress
from typing import Protocol

import numpy as np

from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.dtypes import DType
from kvc.schema.errors import OutOfMemory

ALIGN = 64
PAGE_NBYTES = mmap.PAGESIZE
NORESERVE = 0x4000  # MAPNORESERVE; Python 3.11's mmap has no name for it
_LINUX = sys.platform == "linux"


def align_up(nbytes: int, align: int = ALIGN) -> int:
    """Return the least multiple of `align` that is not below `nbytes`."""
    return -(-nbytes // align) * align


class Pages(Protocol):
    """The way in which the pages of an arena are freed."""

    def drop(self, start: int, end: int) -> None:
        """Free a run of whole pages; the run then reads zeros."""


class _OwnPages:
    """Pages that no other arena shares."""

    def __init__(self, reserved: mmap.mmap) -> None:
        self._map = reserved

    def drop(self, start: int, end: int) -> None:
        """Free the pages of a run, which then reads zeros."""
        if _LINUX:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
        else:
            np.frombuffer(self._map, np.uint8)[start:end] = 0


class Arena:
    """A run of reserved memory, which lives as long as any array over the memory.

    Attributes:
        nbytes: the requested size.
        owner: the object that owns the memory; the memory lives as long as the object.
        bytes: the whole memory, uint8, including an extra page after the requested
            size.
        pages: frees the arena's pages.
    """

    def __init__(self, nbytes: int, what: str = "scratch memory") -> None:
        """Reserve memory; `what` names the memory's purpose in an error.

        Raises:
            OutOfMemory: the system provides no address space.
        """
        # One page more than requested: kernels may read a little past their operands.
        length = align_up(nbytes, PAGE_NBYTES) + PAGE_NBYTES
        self.nbytes = nbytes
        try:
            self.owner = self._map = _reserve(length)
        except (OSError, OverflowError, ValueError, MemoryError) as error:
            raise OutOfMemory(what=what, nbytes=nbytes) from error
        self.bytes: Array = np.ndarray((length,), np.uint8, self._map)
        self.pages: Pages = _OwnPages(self._map)

    @property
    def address(self) -> int:
        """Return the address of the first byte."""
        return address_of(self.bytes)

    def array(self, offset: int, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Return the array of a dtype and shape at a byte offset."""
        return np.ndarray(shape, dtype.numpy, buffer=self._map, offset=offset)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a copy of a few bytes."""
        return self._map[offset : offset + nbytes]

    def write(self, offset: int, content: bytes) -> None:
        """Write a few bytes."""
        self._map[offset : offset + len(content)] = content

    def use_huge_pages(self) -> None:
        """Let the system use huge pages where the memory is written."""
        if _LINUX:
            with suppress(OSError):  # a kernel without them rejects the advice
                self._map.madvise(mmap.MADV_HUGEPAGE)

    def discard(self) -> None:
        """Free all pages; every array over the arena then reads zeros."""
        self.pages.drop(0, len(self.bytes))

    def give_back(self, offset: int, nbytes: int) -> tuple[int, int]:
        """Free the whole pages within a run of bytes; the freed pages then read zeros.

        Return the begin and end of the freed pages. Bytes of the run outside whole
        pages do not change.
        """
        start = align_up(offset, PAGE_NBYTES)
        end = (offset + nbytes) // PAGE_NBYTES * PAGE_NBYTES
        if end <= start:
            return offset, offset
        self.pages.drop(start, end)
        return start, end

    def clear(self, offset: int, nbytes: int) -> None:
        """Set a run of bytes to zero; whole pages within the run are freed."""
        start, end = self.give_back(offset, nbytes)
        self._map[offset:start] = bytes(start - offset)
        self._map[end : offset + nbytes] = bytes(offset + nbytes - end)


class Within:
    """A run of memory inside an arena; its `array` works like `Arena.array`."""

    def __init__(self, memory: Array) -> None:
        """Use `memory`, uint8 [nbytes]."""
        self._memory = memory
        self.nbytes = memory.size

    def array(self, offset: int, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Return the array of a dtype and shape at a byte offset."""
        return np.ndarray(shape, dtype.numpy, self._memory.data, offset)


def _reserve(length: int) -> mmap.mmap:
    if not _LINUX:
        return mmap.mmap(-1, length)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    reserved = mmap.mmap(-1, length, flags=flags)
    with suppress(OSError):  # a kernel without huge pages rejects the advice
        reserved.madvise(mmap.MADV_NOHUGEPAGE)
    return reserved
