"""Who holds each blob: it is in memory from its first use until the last handle goes.

In: open files, and what puts blobs into memory. Out: places. A blob is checked at its
first use, by one thread while others wait for it, and again at the first use after it
went. Different blobs do not wait for each other.

A handle that is dropped may be collected at any point of any thread, where it must wait
for no lock: it is noted, and counted out by whoever can.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvc.runtime.data.places import BlobMemory, Place
from kvc.schema.container import StoredBlobs
from kvc.schema.errors import Closed, Forked


@dataclass(slots=True)
class _Hold:
    """How a blob is held; changes only under `lock`."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    handles: int = 0
    place: Place | None = None


class HeldBlobs:
    """The blobs of a program, each in memory while somebody uses it."""

    def __init__(self, stored: StoredBlobs, memory: BlobMemory) -> None:
        self._memory = memory
        self._holds = tuple(_Hold() for _ in stored.program.blobs)
        self._dropped: deque[int] = deque()
        self._lock = threading.RLock()
        self._reading = 0
        self._refusing = False
        self._closed = False
        self._pid = os.getpid()
        # Runs once: at close, or when the last buffer and program are collected.
        self._closer = weakref.finalize(self, stored.close)
        self._closer.atexit = False

    def acquire(self, blob: int) -> None:
        """Count one more handle."""
        with self._holds[blob].lock:
            self._holds[blob].handles += 1
        self._settle()

    def release(self, blob: int) -> None:
        """Count one handle less; with the last one the memory goes."""
        if os.getpid() != self._pid:  # a lock may have been held at the fork
            return
        with self._holds[blob].lock:
            self._count_out(blob)
        self._settle()

    def drop(self, blob: int) -> None:
        """Count one handle less, now or soon, without waiting for anything."""
        self._dropped.append(blob)
        self._settle()

    def touch(self, blob: int, for_call: bool = False) -> Place:
        """Return where a blob lies, after checking it if nothing has since it went.

        Args:
            blob: its id.
            for_call: whether a call asks, which goes on after `refuse_users`.

        Raises:
            FileChanged, FormatError, FileProblem, OutOfMemory: as `BlobMemory.take`.
            Closed, Forked: the program is closed, or belongs to another process.
        """
        hold = self._holds[blob]
        with self._open(for_call):
            try:
                with hold.lock:
                    if hold.place is None:
                        hold.place = self._memory.take(blob)
                    else:
                        self._memory.check_unchanged(blob)
                    return hold.place
            finally:
                self._settle()

    def check_unchanged(self) -> None:
        """Check all files whose content memory shows; to be called before each use.

        Raises:
            FileChanged: one is not the file that was opened.
        """
        self._memory.check_unchanged()

    def handles(self, blob: int) -> int:
        """Return how many handles there are."""
        return self._holds[blob].handles

    def find(self, blob: int) -> Place | None:
        """Return where a blob lies in memory, None where it does not."""
        return self._holds[blob].place or self._memory.find(blob)

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many resident bytes have gone back; None where nobody can say."""
        return self._memory.freed_nbytes(blob)

    def refuse_users(self) -> None:
        """Be closed for all but the calls that still run."""
        self._refusing = True

    def close(self) -> None:
        """Let go of all memory, and close the files once nobody reads them any more.

        Arrays that are still alive keep their memory.
        """
        with self._lock:
            self._closed = True
            if not self._reading:
                self._finish()

    def _finish(self) -> None:
        for hold in self._holds:
            hold.place = None
        self._memory.close()
        self._closer()

    @contextmanager
    def _open(self, for_call: bool) -> Iterator[None]:
        """Keep the files open meanwhile."""
        if os.getpid() != self._pid:
            raise Forked(kind="program", opened=self._pid, here=os.getpid())
        with self._lock:
            if self._closed or (self._refusing and not for_call):
                raise Closed(kind="program")
            self._reading += 1
        try:
            yield
        finally:
            self._end_reading()

    def _end_reading(self) -> None:
        with self._lock:
            self._reading -= 1
            if self._closed and not self._reading:
                self._finish()

    def _settle(self) -> None:
        """Count out handles that were dropped, as far as no lock must be waited for."""
        for _ in range(len(self._dropped)):
            try:
                blob = self._dropped.popleft()
            except IndexError:  # another thread has counted them out
                return
            if not self._holds[blob].lock.acquire(blocking=False):
                self._dropped.append(blob)  # whoever holds the lock settles next
                continue
            try:
                self._count_out(blob)
            finally:
                self._holds[blob].lock.release()

    def _count_out(self, blob: int) -> None:
        hold = self._holds[blob]
        hold.handles -= 1
        if hold.handles == 0 and hold.place is not None:
            hold.place = None
            self._memory.give_back(blob)
