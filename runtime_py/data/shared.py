"""What the programs of this process share: equal blobs in memory, and maps of files.

In: the digest and size of a blob, or an open file. Out: one `SharedBlob` for equal
blobs of all programs that have them in use, whichever files they come from, and one
`MappedFile` for each file, whichever programs map it.

`SharedBlob.lock` is held while the bytes are read and verified; `SHARES.lock` only for
microseconds. Garbage collection, which may end the use of a blob at any point of any
thread, takes the second lock alone. A forked child begins with nothing to share, since
a thread of its parent may have held a lock.
"""

import os
import threading
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from kvc.runtime.data.locations import ByteRange
from kvc.runtime.data.mapped_files import MappedFile
from kvc.schema.container import OpenFile
from kvc.schema.model import Blob

BlobKey = tuple[bytes, int, str]  # digest, nbytes, mode


@dataclass(slots=True, eq=False)
class SharedBlob:
    """A blob that one or several programs have in use.

    Attributes:
        key: what equal blobs have in common.
        lock: held while the blob is read and verified.
        users: the number of programs that have the blob in use.
        place: the verified blob in memory, None before.
        lender: the mapped file that the blob lies in, and where; None for a copy.
    """

    key: BlobKey
    lock: threading.RLock = field(default_factory=threading.RLock)
    users: int = 0
    place: ByteRange | None = None
    lender: tuple[MappedFile, Blob] | None = None

    def check_unchanged(self) -> None:
        """Check that the mapped file that the blob lies in has not changed.

        Raises:
            FileChanged: it has changed.
            FileProblem: the system does not report its status.
        """
        if self.lender is not None:
            self.lender[0].check_unchanged()


class Shares:
    """The blobs in use and the mapped files of this process.

    Attributes:
        lock: held for each change of the counts, of blobs and of mapped files.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew in a forked child."""
        self.lock = threading.RLock()
        self._blobs: dict[BlobKey, SharedBlob] = {}
        self._files: WeakValueDictionary[object, MappedFile] = WeakValueDictionary()

    def enter(self, key: BlobKey) -> SharedBlob:
        """Count one more program that uses a blob, and return the blob."""
        new = SharedBlob(key)
        with self.lock:
            found = self._blobs.setdefault(key, new)
            found.users += 1
            return found

    def leave(self, blob: SharedBlob) -> bool:
        """Count one program less; tell whether it was the last that used the blob."""
        with self.lock:
            blob.users -= 1
            if blob.users:
                return False
            self.forget(blob)
            return True

    def forget(self, blob: SharedBlob) -> None:
        """Share a blob with no further program."""
        with self.lock:
            if self._blobs.get(blob.key) is blob:
                del self._blobs[blob.key]

    def others(self, key: BlobKey, mine: SharedBlob | None) -> int:
        """Return how many programs have a blob in use, except the one that asks.

        Args:
            key: the key of the blob.
            mine: the blob that the program itself has in use, if any.
        """
        found = self._blobs.get(key)
        if mine is None or found is mine:
            return (0 if found is None else found.users) - (mine is not None)
        return mine.users - 1

    def file(self, file: OpenFile) -> MappedFile:
        """Return the map of a file, shared with programs that opened it unchanged."""
        new = MappedFile(self.lock)
        with self.lock:
            return self._files.setdefault(file.state, new)


SHARES: Final = Shares()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SHARES.renew)
