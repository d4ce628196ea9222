"""Frozen pages: the common content of several sessions, in a sealed memfd.

In: runs of an arena's bytes. Out: a file in memory with these bytes at the same
offsets, and nothing elsewhere; sealed, so that no descriptor and no map can change it.
Its memory is freed when no arena maps it and nothing holds it.
"""

import fcntl
import os
import weakref

from kvc.runtime.memory.arrays import Array
from kvc.runtime.memory.intervals import NONE, Intervals, union

_BLOCK_NBYTES = 512  # the unit of st_blocks, whatever the file system


class Frozen:
    """Pages of one arena's shape; compared and hashed by identity.

    Attributes:
        fd: of the memfd.
        runs: where it has content, in bytes.
    """

    def __init__(self, length: int) -> None:
        """Make an empty one of an arena's length.

        Raises:
            OSError: the system gives no file.
        """
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.fd = os.memfd_create("kvc-fork", flags)
        end = weakref.finalize(self, os.close, self.fd)
        end.atexit = False
        self.runs: Intervals = NONE
        os.ftruncate(self.fd, length)

    def write(self, start: int, content: Array) -> None:
        """Write bytes at an offset.

        Raises:
            OSError: the system gives no memory.
        """
        left = memoryview(content)  # type: ignore[arg-type]  # unknown to numpy's stubs
        while left:
            done = os.pwrite(self.fd, left, start)
            start, left = start + done, left[done:]

    def seal(self, runs: Intervals) -> None:
        """Allow no more changes; `runs` have been written."""
        self.runs = union([self.runs, runs])
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)

    @property
    def inode(self) -> int:
        """Return what tells it from others, whoever has it open."""
        return os.fstat(self.fd).st_ino

    @property
    def nbytes(self) -> int:
        """Return how much memory it takes, as the system counts it."""
        return os.fstat(self.fd).st_blocks * _BLOCK_NBYTES
