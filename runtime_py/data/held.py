"""Count the handles on each blob, and free a blob's memory with its last handle.

In: open files, and a `BlobMemory`. Out: the locations of blobs in memory. A blob is
read into memory and verified at its first use, and again at the first use after it was
freed. One thread verifies; other threads that need the same blob wait, while threads
that need different blobs do not.

Garbage collection may drop a handle at any point of any thread, where waiting for the
verification of a blob could be a deadlock. So a dropped handle is only recorded, and
subtracted from the count later.
"""

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvc.runtime.data.locations import BlobMemory, ByteRange, Changing
from kvc.schema.container import OpenFile, StoredBlobs
from kvc.schema.errors import Closed, Forked


@dataclass(slots=True)
class _Hold:
    """A blob's handle count and location; only the owner of `lock` writes them."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    handles: int = 0
    dropped: list[None] = field(default_factory=list)  # dropped handles; without lock
    place: ByteRange | None = None


class HeldBlobs:
    """The blobs of a program; a blob in memory stays there while it has handles."""

    def __init__(self, stored: StoredBlobs, memory: BlobMemory) -> None:
        self._memory = memory
        self._stored = stored
        self._holds = tuple(_Hold() for _ in stored.program.blobs)
        self._lock = threading.RLock()
        self._reading = 0
        self._refusing = False
        self._closed = False
        self._pid = os.getpid()
        # Runs once: at close, or when the last buffer and program are collected.
        self._closer = weakref.finalize(self, _end, stored, memory, self._pid)
        self._closer.atexit = False

    @property
    def shown(self) -> Sequence[Changing]:
        """Return the files that blobs are mapped from, to check before each use."""
        return self._memory.shown

    def acquire(self, blob: int) -> None:
        """Add one handle to the count of a blob.

        Raises:
            Forked: the program was opened by another process.
        """
        self._check_process()
        with self._holds[blob].lock:
            self._holds[blob].handles += 1
        self._settle(blob)

    def release(self, blob: int) -> None:
        """Subtract one handle from the count; without handles, free the memory."""
        if os.getpid() != self._pid:  # another thread may have held a lock at the fork
            return
        with self._holds[blob].lock:
            self._count_out(blob)
        self._settle(blob)

    def drop(self, blob: int) -> None:
        """Subtract one handle from the count, now or at the next use of the blob.

        The method never waits for a verification. It waits only if the handle is the
        last and another thread maps or frees pages, which takes microseconds.
        """
        if os.getpid() != self._pid:
            return
        self._holds[blob].dropped.append(None)
        self._settle(blob)

    def touch(self, blob: int, for_call: bool = False) -> ByteRange:
        """Return the place of a blob; if the blob is not in memory, read and verify it.

        Args:
            blob: the id of the blob.
            for_call: whether a running call needs the blob; calls can use blobs even
                after `refuse_users`.

        Raises:
            FileChanged, FormatError, FileProblem, OutOfMemory: as `BlobMemory.take`.
            Closed, Forked: the program is closed, or was opened by another process.
        """
        hold = self._holds[blob]
        with self._open(for_call):
            try:
                with hold.lock:
                    if hold.place is None:
                        hold.place = self._memory.take(blob)
                    else:
                        self._memory.check(blob)
                    return hold.place
            finally:
                self._settle(blob)

    def read_into(self, blob: int, target: memoryview, for_call: bool = False) -> None:
        """Read a blob into the caller's memory, and verify it there.

        No other memory is allocated for the blob.

        Args:
            blob: the id of the blob.
            target: memory of exactly the blob's size.
            for_call: as in `touch`.

        Raises:
            KvcError: as `touch`; the content of `target` is then undefined.
        """
        with self._open(for_call):
            self._file(blob).check_unchanged()
            self._stored.read_into(blob, target)

    def handles(self, blob: int) -> int:
        """Return the number of handles on a blob."""
        return self._holds[blob].handles

    def find(self, blob: int) -> ByteRange | None:
        """Return the place of a blob, None if the blob is not in memory."""
        return self._holds[blob].place or self._memory.find(blob)

    def sharers(self, blob: int) -> int:
        """Return how many other programs of this process have a blob in use."""
        return self._memory.sharers(blob)

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many resident bytes of a blob were freed; None if unknown."""
        return self._memory.freed_nbytes(blob)

    def refuse_users(self) -> None:
        """Refuse every later use, except by calls that are still running."""
        self._refusing = True

    def close(self) -> None:
        """Release all memory, and close the files as soon as no thread reads them.

        Arrays over the memory of a blob stay valid.
        """
        with self._lock:
            self._closed = True
            if not self._reading:
                self._finish()

    def _file(self, blob: int) -> OpenFile:
        return self._stored.files[self._stored.program.blobs[blob].file]

    def _finish(self) -> None:
        for hold in self._holds:
            hold.place = None
        self._closer()

    @contextmanager
    def _open(self, for_call: bool) -> Iterator[None]:
        """Keep the data files open within the `with` block.

        `for_call` is as in `touch`.
        """
        self._check_process()
        with self._lock:
            if self._closed or (self._refusing and not for_call):
                raise Closed(kind="program")
            self._reading += 1
        try:
            yield
        finally:
            self._end_reading()

    def _check_process(self) -> None:
        """Check that this process is the one that opened the program.

        Raises:
            Forked: this is a forked child, whose parent may have held a lock.
        """
        here = os.getpid()
        if here != self._pid:
            raise Forked(kind="program", opened=self._pid, here=here)

    def _end_reading(self) -> None:
        with self._lock:
            self._reading -= 1
            if self._closed and not self._reading:
                self._finish()

    def _settle(self, blob: int) -> None:
        """Subtract a blob's dropped handles, unless a thread holds the blob's lock.

        The thread that holds the lock calls this method after releasing it, so no
        handle is missed.
        """
        hold = self._holds[blob]
        while hold.dropped and hold.lock.acquire(blocking=False):
            try:
                if hold.dropped:  # another thread may have counted it out
                    hold.dropped.pop()
                    self._count_out(blob)
            finally:
                hold.lock.release()

    def _count_out(self, blob: int) -> None:
        hold = self._holds[blob]
        hold.handles -= 1
        if hold.handles == 0 and hold.place is not None:
            hold.place = None
            self._memory.give_back(blob)


def _end(stored: StoredBlobs, memory: BlobMemory, pid: int) -> None:
    """Release all memory and close the files."""
    if os.getpid() == pid:  # another thread may have held a lock at the fork
        memory.close()
    stored.close()
