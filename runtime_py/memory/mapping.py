"""System calls that map other memory in place of an arena's pages: Linux only.

Python's own `mmap` cannot map at a given address. In: addresses inside a map that the
caller owns. Out: whether the call succeeded. After a failure the old pages are still
there: the kernel checks the number of maps before it removes any (mm/mmap.c, do_mmap).
"""

import ctypes
import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from kvc.runtime.memory.arenas import NORESERVE
from kvc.runtime.memory.arrays import Array
from kvc.runtime.memory.intervals import NONE, Intervals, union

_ACCESS: Final = mmap.PROT_READ | mmap.PROT_WRITE
_FIXED: Final = 0x10  # MAP_FIXED, which Python's mmap does not name
_OVER: Final = _FIXED | NORESERVE
_NOTHING: Final = -1


def is_available() -> bool:
    """Tell whether the system can share pages; if not, a fork copies the content."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def map_privately(address: int, fd: int, runs: Sequence[Sequence[int]]) -> int:
    """Put private maps of a file over runs of pages.

    A run that begins n bytes after `address` shows the file from byte n on. Stop at the
    first run that the system refuses; return the number of mapped runs.
    """
    place, flags = _calls()[0], mmap.MAP_PRIVATE | _OVER
    for done, (start, end) in enumerate(runs):
        here = address + start
        if place(here, end - start, _ACCESS, flags, fd, start) != here:
            return done
    return len(runs)


def map_nothing(address: int, nbytes: int) -> bool:
    """Map fresh anonymous memory, without huge pages, in place of a run of pages."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _OVER
    place, advise = _calls()
    if place(address, nbytes, _ACCESS, flags, _NOTHING, 0) != address:
        return False
    # A kernel without huge pages rejects the advice.
    advise(address, nbytes, mmap.MADV_NOHUGEPAGE)
    return True


@cache
def _calls() -> tuple[Callable[..., int], Callable[..., int]]:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library.mmap, library.madvise


# Frozen pages: the common content of several sessions, in a sealed memfd


_BLOCK_NBYTES = 512  # the unit of st_blocks on every file system


class Frozen:
    """A memfd of an arena's size; compared and hashed by identity.

    Attributes:
        fd: the file descriptor of the memfd.
        runs: the byte ranges that have been written.
    """

    def __init__(self, length: int) -> None:
        """Make an empty memfd of an arena's length.

        Raises:
            OSError: the system provides no memfd.
        """
        self.fd = os.memfd_create("kvc-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        end = weakref.finalize(self, os.close, self.fd)
        end.atexit = False
        self.runs: Intervals = NONE
        os.ftruncate(self.fd, length)

    def write(self, start: int, content: Array) -> None:
        """Write bytes at an offset.

        Raises:
            OSError: the system has no memory for the bytes.
        """
        left = memoryview(content)  # type: ignore[arg-type]  # unknown to numpy's stubs
        while left:
            done = os.pwrite(self.fd, left, start)
            start, left = start + done, left[done:]

    def seal(self, runs: Intervals) -> None:
        """Forbid further changes; `runs` are the byte ranges that have been written."""
        self.runs = union([self.runs, runs])
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)

    @property
    def inode(self) -> int:
        """Return the inode, which identifies the memfd in every process."""
        return os.fstat(self.fd).st_ino

    @property
    def nbytes(self) -> int:
        """Return the memory that the memfd occupies, as the system counts it."""
        return os.fstat(self.fd).st_blocks * _BLOCK_NBYTES
