"""Blobs in maps of their files: a page enters memory when it is first used.

In: open files. Out: places in the maps of `mapped_files.py`. Blobs are verified by
reading the file, not the map, so verification touches no page of the map. A blob that
another program of the process has in use is neither verified nor mapped again: both
use the map of one file, even if they have the blob in different files.
"""

from collections import Counter
from contextlib import suppress
from typing import Final

from kvc.runtime.data.locations import ByteRange
from kvc.runtime.data.mapped_files import MappedFile
from kvc.runtime.data.shared import SHARES, BlobKey, SharedBlob
from kvc.schema.container import StoredBlobs
from kvc.schema.errors import FileChanged, FileProblem
from kvc.schema.model import Blob

_MODE: Final = "map"


class MappedBlobs:
    """The blobs of a program in maps of their files; see `BlobMemory`."""

    def __init__(self, stored: StoredBlobs) -> None:
        self._stored = stored
        self._blobs = stored.program.blobs
        self.shown: tuple[MappedFile, ...] = ()
        self._files: dict[int, MappedFile] = {}
        self._taken: dict[int, SharedBlob] = {}
        self._uses: Counter[MappedFile] = Counter()  # of blobs in use, by file
        self._freed: list[int | None] = [0] * len(self._blobs)

    def take(self, blob: int) -> ByteRange:
        """Verify a blob, and map its file if necessary; see `BlobMemory.take`."""
        entry = self._blobs[blob]
        self._stored.files[entry.file].check_unchanged()
        shared = self._enter(_key(entry))
        try:
            with shared.lock:
                if shared.place is None:
                    shared.lender, shared.place = self._map(blob)
                self._show(shared)
                self._taken[blob] = shared
                return shared.place
        except BaseException:
            SHARES.leave(shared)
            raise

    def check(self, blob: int) -> None:
        """Check the file that a blob is mapped from; see `BlobMemory.check`."""
        shared = self._taken.get(blob)
        if shared is not None:
            shared.check_unchanged()

    def give_back(self, blob: int) -> None:
        """Free the pages that hold no blob in use; the file still has their content."""
        nbytes, before = self._leave(blob), self._freed[blob]
        if nbytes is None or before is None:
            self._freed[blob] = None
        else:
            self._freed[blob] = before + nbytes

    def find(self, blob: int) -> ByteRange | None:
        """Return the place of a blob in the map of its file, None if no map exists."""
        entry = self._blobs[blob]
        file = self._files.get(entry.file)
        whole = None if file is None else file.found
        return None if whole is None else ByteRange(whole, entry.offset)

    def sharers(self, blob: int) -> int:
        """Return how many other programs have a blob in use."""
        return SHARES.others(_key(self._blobs[blob]), self._taken.get(blob))

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many resident bytes of a blob were freed so far."""
        return self._freed[blob]

    def close(self) -> None:
        """Release the blobs, and the maps that no other program uses."""
        for blob in tuple(self._taken):
            self._leave(blob, measure=False)
        self.shown = ()
        self._uses.clear()
        self._files.clear()

    def _enter(self, key: BlobKey) -> SharedBlob:
        """Return the blob that programs share; a new one if its file has changed."""
        while True:
            shared = SHARES.enter(key)
            with suppress(FileChanged, FileProblem):
                shared.check_unchanged()
                return shared
            SHARES.forget(shared)
            _leave(shared, measure=False)

    def _map(self, blob: int) -> tuple[tuple[MappedFile, Blob], ByteRange]:
        entry = self._blobs[blob]
        opened = self._stored.files[entry.file]
        self._stored.check(blob)
        file = self._files.setdefault(entry.file, SHARES.file(opened))
        return (file, entry), ByteRange(file.use(opened, entry), entry.offset)

    def _show(self, shared: SharedBlob) -> None:
        """Add the file of a blob to those that are checked before each use."""
        if shared.lender is None:
            return
        file = shared.lender[0]
        with SHARES.lock:
            self._uses[file] += 1
            if file not in self.shown:
                self.shown = (*self.shown, file)

    def _leave(self, blob: int, measure: bool = True) -> int | None:
        shared = self._taken.pop(blob, None)
        if shared is None or shared.lender is None:
            return 0
        file = shared.lender[0]
        with SHARES.lock:
            self._uses[file] -= 1
            if not self._uses[file]:
                self.shown = tuple(one for one in self.shown if one is not file)
        return _leave(shared, measure)


def _leave(shared: SharedBlob, measure: bool) -> int | None:
    """Give back a blob; return how many resident bytes were freed, None if unknown."""
    last = SHARES.leave(shared)
    if not last or shared.lender is None:
        return 0
    file, entry = shared.lender
    return file.give_back(entry, measure)


def _key(entry: Blob) -> BlobKey:
    return entry.digest, entry.nbytes, _MODE
