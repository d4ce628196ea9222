"""Files that a bundle carries, such as a tokenizer: bytes that nothing computes with.

In: names, each with bytes or the path of a file. Out: contents, whose sizes are known
now; files are read when the bundle is saved, one block at a time.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvc.schema.container import Content
from kvc.schema.errors import BadFile, reason_of
from kvc.schema.uses import is_plain_name

Files = Mapping[str, bytes | Path]

_BLOCK_NBYTES: Final = 1 << 20


def take_files(files: Files) -> dict[str, Content]:
    """Return what is to be stored under each name, in the order of names.

    Raises:
        BadFile: a name is not a plain one, or the content is neither bytes nor the
            path of a file that can be read.
    """
    return {name: _content(name, files[name]) for name in sorted(files, key=_plain)}


def _plain(name: object) -> str:
    if isinstance(name, str) and is_plain_name(name):
        return name
    reason = (
        "its name must be a plain one: letters, digits, '.', '_' and '-', not a dot "
        "first, 128 at the most"
    )
    raise BadFile(file=str(name), reason=reason)


def _content(name: str, given: object) -> Content:
    if isinstance(given, bytes):
        held = given
        return Content(len(held), lambda: iter([memoryview(held)]), held)
    if isinstance(given, Path):
        source = _DiskFile.find(name, given)
        return Content(source.identity[0], source.chunks, source)
    kind = type(given).__name__
    reason = f"expected its bytes, or a pathlib.Path to read them from, found {kind}"
    raise BadFile(file=name, reason=reason)


@dataclass(frozen=True, slots=True)
class _DiskFile:
    """A file on disk, as it was when it was given.

    Attributes:
        identity: size, time of change, device and inode.
    """

    name: str
    path: Path
    identity: tuple[int, int, int, int]

    @classmethod
    def find(cls, name: str, path: Path) -> "_DiskFile":
        """Look at a file.

        Raises:
            BadFile: it is not there, or no plain file.
        """
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            raise _unreadable(name, path, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(file=name, reason=f"{path} is not a plain file")
        return cls(name, path, _identity(status))

    def chunks(self) -> Iterator[memoryview]:
        """Yield its bytes.

        Raises:
            BadFile: it cannot be read, or is not what it was.
        """
        try:
            with self.path.open("rb") as file:
                rest = self.identity[0]
                same = _identity(os.fstat(file.fileno())) == self.identity
                while same and rest and (block := file.read(min(rest, _BLOCK_NBYTES))):
                    rest -= len(block)
                    yield memoryview(block)
                same = same and _identity(os.fstat(file.fileno())) == self.identity
        except OSError as error:
            raise _unreadable(self.name, self.path, error) from error
        if rest or not same:
            reason = f"{self.path} changed since it was given; compile again"
            raise BadFile(file=self.name, reason=reason)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


def _unreadable(name: str, path: Path, error: Exception) -> BadFile:
    return BadFile(file=name, reason=f"cannot read {path}: {reason_of(error)}")
