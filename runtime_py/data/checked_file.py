"""Files of kvc's own with a header and a checksum: saved sessions and adapters.

A file is a magic number, a version, the header's size, a header in JSON, the bytes of
some arrays, and the SHA-256 of everything before it. In: a path. Out: the header, which
is some JSON object, and the arrays. Files are written completely or not at all.
"""

import hashlib
import json
import os
import stat
import struct
from abc import abstractmethod
from collections.abc import Iterable
from itertools import chain
from typing import BinaryIO, ClassVar, Final

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.closing import Closing
from kvc.schema.container import AtomicFile, guess_kind, path_text
from kvc.schema.errors import FileProblem, KvcError, reason_of

LEAD: Final = struct.Struct("<8sIQ")  # magic, version, bytes of the header
MOST_HEADER: Final = 64 << 20  # bytes of JSON
DIGEST_NBYTES: Final = 32
_CHUNK_NBYTES: Final = 8 << 20
_HEAD_NBYTES: Final = 128
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class CheckedFile(Closing):
    """An open file whose digest has been checked; use it in a `with` statement.

    Attributes:
        magic: the first eight bytes of the files of a class.
        what: what a file of the class is, for messages.
        newest: the greatest version that can be read.
        path: the path of the file, for messages.
        nbytes: the size of the file.
        start: the offset of the first array in the file, in bytes.
        version: the version of the file.
        content: the header of the file.
        digest: the digest of the file, 32 bytes.
    """

    magic: ClassVar[bytes]
    what: ClassVar[str]
    newest: ClassVar[int]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file and check its bytes.

        Raises:
            BadSetting: `path` is not a path.
            FileProblem: the system cannot read the file.
            KvcError: the error of `problem`, if the file is of another kind or damaged.
        """
        self.path = path_text(path)
        self._file, self.nbytes = _open(self.path)
        try:
            self.version, self.start = self._read_lead()
            total, left = hashlib.sha256(), self.nbytes - DIGEST_NBYTES
            self._file.seek(0)
            while left and (chunk := self._file.read(min(left, _CHUNK_NBYTES))):
                total.update(chunk)
                left -= len(chunk)
            self.digest = total.digest()
            same = self._file.read(DIGEST_NBYTES) == self.digest
            self.require(same, "it is damaged: its bytes do not have their digest")
            self.content = self._read_header()
        except OSError as error:
            self._file.close()
            raise _problem(self.path, error) from error
        except BaseException:
            self._file.close()
            raise

    @abstractmethod
    def problem(self, reason: str) -> KvcError:
        """Return the error that says why the file is refused."""

    def require(self, holds: bool, reason: str) -> None:
        """Raise the error of `problem` with a reason unless a condition holds."""
        if not holds:
            raise self.problem(reason)

    def read_array(
        self, offset: int, shape: tuple[int, ...], dtype: "np.dtype[np.generic]"
    ) -> Array:
        """Return the array that begins `offset` bytes after `start`.

        Raises:
            FileProblem, KvcError: the file can no longer be read.
        """
        array: Array = np.empty(shape, dtype)
        try:
            self._file.seek(self.start + offset)
            read = self._file.readinto(array.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]
        except OSError as error:
            raise _problem(self.path, error) from error
        self.require(read == array.nbytes, "it became shorter while it was read")
        return array

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _read_lead(self) -> tuple[int, int]:
        """Check the file's beginning; return its version and the offset `start`."""
        head = self._file.read(_HEAD_NBYTES)
        lead = head[: LEAD.size]
        looks = f"it is not {self.what}, it looks like {guess_kind(head)}"
        self.require(lead[:8] == self.magic, looks)
        self.require(self.nbytes >= LEAD.size + DIGEST_NBYTES, "it is cut short")
        _, version, nbytes = LEAD.unpack(lead)
        newest = self.newest
        known = f"it has version {version}, this kvc reads 0 to {newest}"
        self.require(version <= newest, known)
        most = min(MOST_HEADER, self.nbytes - LEAD.size - DIGEST_NBYTES)
        self.require(nbytes <= most, f"its header has {nbytes} bytes")
        return version, LEAD.size + int(nbytes)

    def _read_header(self) -> dict[str, object]:
        self._file.seek(LEAD.size)
        try:
            found = json.loads(self._file.read(self.start - LEAD.size))
        except (ValueError, RecursionError):
            found = None
        self.require(isinstance(found, dict), "its header is not a JSON object")
        return found  # type: ignore[no-any-return]  # as checked


def write_checked(
    path: str, magic: bytes, version: int, header: bytes, parts: Iterable[memoryview]
) -> None:
    """Write a file of which `CheckedFile` reads the kind with this magic number.

    Args:
        path: the path of the file; an existing file is replaced at the end.
        magic: the magic number.
        version: the version.
        header: the header as JSON.
        parts: the bytes of the arrays, in order.

    Raises:
        CannotWrite: the system refuses the write; the old file is untouched.
        Unsynced: the file is written, but may not survive a crash of the system.
    """
    total = hashlib.sha256()
    with AtomicFile(path) as file:
        lead: tuple[bytes, ...] = LEAD.pack(magic, version, len(header)), header
        for part in chain[bytes | memoryview](lead, parts):
            total.update(part)
            file.write(part)
        file.write(total.digest())
        file.commit()


def _open(path: str) -> tuple[BinaryIO, int]:
    """Open a regular file; return the file and its size in bytes."""
    try:
        fd = os.open(path, _OPEN)
    except (OSError, ValueError) as error:
        raise _problem(path, error) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise FileProblem(path=path, reason="it is not a plain file")
    return os.fdopen(fd, "rb"), status.st_size


def _problem(path: str, error: Exception) -> FileProblem:
    return FileProblem(path=path, reason=reason_of(error))
