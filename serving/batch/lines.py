"""The lines of a batch's input, one after the other, and what identifies the file.

In: a file, or stdin. Out: lines with their numbers, from 1; blank lines are left out,
but count. Memory is bounded: a line that is too long is skipped, and said to be.
"""

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Final, Protocol

from kvc.schema.errors import FileProblem, reason_of
from kvc.schema.frozen import frozen

LONGEST: Final = 16 << 20  # bytes of a line
_PIECE: Final = 1 << 20
_KEY_NBYTES: Final = 8


class Readable(Protocol):
    """A file that is open for reading."""

    def readline(self, most: int, /) -> bytes:
        """Return the next bytes up to a line feed, at most so many; b"" at the end."""


@frozen
class Line:
    """A line of the input.

    Attributes:
        number: its number, from 1.
        raw: its bytes, without the line feed; only the first of one that is too long.
        is_too_long: whether it has more than `LONGEST` bytes.
    """

    number: int
    raw: bytes
    is_too_long: bool = False

    @property
    def key(self) -> int:
        """Return what tells whether a line is still the same, 64 bits."""
        found = hashlib.blake2b(self.raw, digest_size=_KEY_NBYTES).digest()
        return int.from_bytes(found, "big")


def lines_of(file: Readable) -> Iterator[Line]:
    """Yield the lines of a file that are not blank.

    Raises:
        FileProblem: the file cannot be read.
    """
    number = 0
    while raw := _read(file, LONGEST + 1):
        number += 1
        too_long = len(raw) > LONGEST and not raw.endswith(b"\n")
        if too_long:
            _skip_line(file)
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")  # as some editors write it
        if raw and not raw.isspace():
            yield Line(number, raw.rstrip(b"\r\n"), too_long)


def _skip_line(file: Readable) -> None:
    while (raw := _read(file, _PIECE)) and not raw.endswith(b"\n"):
        pass


def _read(file: Readable, most: int) -> bytes:
    try:
        return file.readline(most)
    except OSError as error:
        name = str(getattr(file, "name", "the input"))
        raise FileProblem(path=name, reason=reason_of(error)) from error


@frozen
class Input:
    """What is known of an input before it is read for good.

    Attributes:
        digest: the SHA-256 of the file in hexadecimal.
        count: the number of lines that are not blank.
    """

    digest: str
    count: int


class _Hashed:
    """A file whose lines are hashed as they are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.name = file, file.name
        self.hasher = hashlib.sha256()

    def readline(self, most: int) -> bytes:
        raw = self._file.readline(most)
        self.hasher.update(raw)
        return raw


def survey(path: str) -> Input:
    """Read a file once, for its digest and the number of its lines.

    Raises:
        FileProblem: the file cannot be read.
    """
    with opened(path) as file:
        hashed = _Hashed(file)
        count = sum(1 for _ in lines_of(hashed))
    return Input(hashed.hasher.hexdigest(), count)


def opened(path: str) -> BinaryIO:
    """Open a file for reading.

    Raises:
        FileProblem: the file cannot be read.
    """
    try:
        return open(path, "rb")  # noqa: PTH123  "" would be "."
    except (OSError, ValueError) as error:
        raise FileProblem(path=path, reason=reason_of(error)) from error
