"""The file format of saved sessions.

A file is a magic number, a version, the header's size, a header in JSON, the bytes of
each state in program order, and the SHA-256 of everything before it. In: a path. Out:
the header, of which only the form is checked, and the arrays of states. `snapshots.py`
checks sizes and positions against the program.
"""

import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import BinaryIO, Final

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.closing import Closing
from kvc.schema.container import SESSION_MAGIC, guess_kind, path_text
from kvc.schema.errors import BadSnapshot, FileProblem, reason_of
from kvc.schema.frozen import frozen

VERSION: Final = 1
MOST: Final = 1 << 62  # the greatest position, length or token id
LEAD: Final = struct.Struct("<8sIQ")  # magic, version, bytes of the header
MOST_HEADER: Final = 64 << 20  # bytes of JSON
DIGEST_NBYTES: Final = 32
_SINCE_1: Final[dict[str, object]] = {"position": None, "pending": []}
_LEFT_OUT: Final[Mapping[str, Callable[[], object]]] = {
    "others": list,
    "attached": dict,
}
_CHUNK_NBYTES: Final = 8 << 20
_HEAD_NBYTES: Final = 128
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@frozen
class Header:
    """The header of a saved session.

    Attributes:
        program: the identity of the program, in hexadecimal; in older files the digest
            of the program.
        sizes: the sizes of the symbols that the session fixed.
        capacity: how many tokens a row can hold, None if there is no limit.
        position: the position of each row, None if the program has no position; not in
            version 0.
        pending: the tokens of each row that are to run next, empty for none; not in
            version 0.
        counted: the position of each row at the first cursor, if the session counts it.
        others: for each cursor but the first, the position of each row, if the session
            counts it; left out of the file if no other cursor exists.
        lengths: the lengths of growing states; 0 for other states.
        written: how many slots are saved of each cache whose slots after the position
            are unused.
        reached: for each row the furthest position that its ring buffers were written
            at; empty without ring buffers.
        states: the name, dtype, saved shape and byte count of each state.
        attached: what the saver of the session adds, such as a conversation; left out
            of the file if it is empty.
    """

    program: str
    sizes: Mapping[str, int]
    capacity: int | None
    position: Sequence[int] | None
    pending: Sequence[Sequence[int]]
    counted: Sequence[int]
    others: Sequence[Sequence[int]]
    lengths: Sequence[int]
    written: int
    reached: Sequence[int]
    states: Sequence[Mapping[str, object]]
    attached: Mapping[str, object]

    def as_written(self) -> dict[str, object]:
        """Return the header fields to write, without those that may be left out."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _LEFT_OUT:
            if not content[name]:
                del content[name]
        return content


class SnapshotFile(Closing):
    """An open file whose digest has been checked; use it in a `with` statement.

    Attributes:
        path: the path of the file, for messages.
        nbytes: the size of the file.
        start: the offset of the first state in the file, in bytes.
        header: the header of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file and check its bytes.

        Raises:
            BadSetting: `path` is not a path.
            FileProblem: the system cannot read the file.
            BadSnapshot: the file is not a saved session, or is damaged.
        """
        self.path = path_text(path)
        self._file, self.nbytes = _open(self.path)
        try:
            version, self.start = self._read_lead()
            total, left = hashlib.sha256(), self.nbytes - DIGEST_NBYTES
            self._file.seek(0)
            while left and (chunk := self._file.read(min(left, _CHUNK_NBYTES))):
                total.update(chunk)
                left -= len(chunk)
            same = self._file.read(DIGEST_NBYTES) == total.digest()
            self.require(same, "it is damaged: its bytes do not have their digest")
            self.header = self._read_header(version)
        except OSError as error:
            self._file.close()
            raise _problem(self.path, error) from error
        except BaseException:
            self._file.close()
            raise

    def read_array(
        self, offset: int, shape: tuple[int, ...], dtype: "np.dtype[np.generic]"
    ) -> Array:
        """Return the array that begins `offset` bytes after `start`.

        Raises:
            FileProblem, BadSnapshot: the file can no longer be read.
        """
        array: Array = np.empty(shape, dtype)
        try:
            self._file.seek(self.start + offset)
            read = self._file.readinto(array.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]
        except OSError as error:
            raise _problem(self.path, error) from error
        self.require(read == array.nbytes, "it became shorter while it was read")
        return array

    def require(self, holds: bool, reason: str) -> None:
        """Raise an error unless a condition holds.

        Args:
            holds: whether the condition holds.
            reason: why the file is refused if it does not hold.

        Raises:
            BadSnapshot: the condition does not hold.
        """
        if not holds:
            raise BadSnapshot(path=self.path, reason=reason)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _read_lead(self) -> tuple[int, int]:
        """Check the file's beginning; return its version and the offset `start`."""
        head = self._file.read(_HEAD_NBYTES)
        lead = head[: LEAD.size]
        looks = f"it is not a saved session, it looks like {guess_kind(head)}"
        self.require(lead[:8] == SESSION_MAGIC, looks)
        self.require(self.nbytes >= LEAD.size + DIGEST_NBYTES, "it is cut short")
        _, version, nbytes = LEAD.unpack(lead)
        known = version <= VERSION
        self.require(known, f"it has version {version}, this kvc reads 0 to {VERSION}")
        most = min(MOST_HEADER, self.nbytes - LEAD.size - DIGEST_NBYTES)
        self.require(nbytes <= most, f"its header has {nbytes} bytes")
        return version, LEAD.size + int(nbytes)

    def _read_header(self, version: int) -> Header:
        self._file.seek(LEAD.size)
        try:
            found = json.loads(self._file.read(self.start - LEAD.size))
        except (ValueError, RecursionError):
            found = None
        self.require(isinstance(found, dict), "its header is not a JSON object")
        if version == 0:
            self.require(
                not found.keys() & _SINCE_1.keys(), "its header has other parts"
            )
            found |= _SINCE_1
        found = {**{name: make() for name, make in _LEFT_OUT.items()}, **found}
        known = set(found) == {each.name for each in fields(Header)}
        self.require(known, "its header has other parts")
        for name, has_form in _FORMS.items():
            self.require(has_form(found[name]), f"{name} is {found[name]!r}")
        return Header(**found)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_count, values))


_FORMS: Final[Mapping[str, Callable[[object], bool]]] = {
    "program": lambda value: isinstance(value, str),
    "sizes": lambda value: isinstance(value, dict),
    "capacity": lambda value: value is None or _is_count(value),
    "position": lambda value: value is None or _are_counts(value),
    "pending": lambda value: isinstance(value, list) and all(map(_are_counts, value)),
    "others": lambda value: isinstance(value, list) and all(map(_are_counts, value)),
    "counted": _are_counts,
    "lengths": _are_counts,
    "written": _is_count,
    "reached": _are_counts,
    "states": lambda value: isinstance(value, list),
    "attached": lambda value: isinstance(value, dict),
}


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
