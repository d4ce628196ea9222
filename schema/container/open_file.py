"""`OpenFile`: a file descriptor, and the identity of the file when it was opened.

In: a path from a caller, or a file name in an open folder. Out: exactly the number of
bytes requested, and whether the path still leads to the unchanged file that was opened.
Nothing is memory-mapped.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kvc.schema.closing import Closing
from kvc.schema.container.kinds import SESSION_MAGIC
from kvc.schema.errors import (
    BadSetting,
    BadStructure,
    FileChanged,
    FileProblem,
    Truncated,
    reason_of,
)

Folder = str | os.PathLike[str]


def path_text(path: object, name: str = "path") -> str:
    """Return a path as a string; messages call the argument `name`.

    Raises:
        BadSetting: the argument is not a path.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(text, str):
        return text
    expected, found = "a str or an os.PathLike", repr(text)
    if isinstance(text, bytes):
        expected += " (os.fsdecode converts a path in bytes to text; the content of a "
        expected += "file is no path: write it to a file first)"
        found = f"{len(text)} bytes"
    raise BadSetting(name=name, expected=expected, found=found)


def resolved(path: Folder, problem: type[FileProblem] = FileProblem) -> Path:
    """Return a path with links followed; the file need not exist.

    Raises:
        FileProblem: links form a circle, or the path contains NUL. The error is of the
            class `problem`.
        BadSetting: the argument is not a path.
    """
    text = path_text(path)
    try:
        return Path(text).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links
        raise problem(path=text, reason=reason_of(error)) from error


def several(paths: Folder | Iterable[Folder]) -> tuple[str, ...]:
    """Return a path or several paths as a tuple of strings.

    Raises:
        BadSetting: an argument is not a path.
    """
    if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable):
        return (path_text(paths),)
    return tuple(map(path_text, paths))


# Without O_NONBLOCK opening a FIFO would wait for a writer.
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_AT_ONCE: Final = 1 << 30  # one system call reads less than 2 GiB
_LINK: Final = (
    "it is a symbolic link, and those are not followed to data files: put the file "
    "itself there, or give the folder that it is in"
)
FileIdentity = tuple[int, int, int, int]


def is_session(path: str | os.PathLike[str]) -> bool:
    """Tell, from the first bytes of a file, whether it is a saved session.

    Raises:
        FileProblem: the system refuses, or the path is not a regular file.
    """
    with OpenFile(path) as file:
        start = file.pread(0, min(len(SESSION_MAGIC), file.size))
    return start == SESSION_MAGIC


class OpenFile(Closing):
    """A regular file, open for reading.

    Attributes:
        path: the path as it was given.
        fd: the descriptor; it belongs to this object.
        size: size of the file, in bytes.
        state: what tells the file, as it was when it was opened, from other files and
            from later content: size, time of the last write, inode and device.
    """

    def __init__(self, path: str | os.PathLike[str], within: int | None = None) -> None:
        """Open a file.

        Args:
            path: path of the file.
            within: the descriptor of the file's folder. If it is given, only the last
                part of `path` is used, and a symbolic link is refused.

        Raises:
            BadSetting: `path` is not a path.
            FileProblem: the system refuses, or the path is not a regular file.
        """
        self.path = path_text(path)
        self.fd = _open(self.path, within)
        try:
            status = os.fstat(self.fd)
            if not stat.S_ISREG(status.st_mode):
                what = "folder" if stat.S_ISDIR(status.st_mode) else "special file"
                raise FileProblem(
                    path=self.path, reason=f"it is a {what}, not a kvc file"
                )
        except BaseException:
            self.close()
            raise
        self.size = status.st_size
        self.state = _identity(status)

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes from `offset` on.

        Raises:
            FileProblem: the system refuses.
            Truncated: the file ends before `offset + nbytes`.
        """
        content = bytearray(nbytes)
        self.pread_into(offset, memoryview(content))
        return bytes(content)

    def pread_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `offset` on; raise the errors of `pread`."""
        end, rest = offset + view.nbytes, view
        while rest.nbytes:
            try:
                count = os.preadv(self.fd, [rest[:_MOST_AT_ONCE]], end - rest.nbytes)
            except OSError as error:
                raise _problem(self.path, error) from error
            if not count:
                found, what = end - rest.nbytes, "a part"
                raise Truncated(path=self.path, found=found, what=what, expected=end)
            rest = rest[count:]

    def check_zeros(self, start: int, end: int) -> None:
        """Check that the bytes from `start` to `end`, which are padding, are zero.

        Raises:
            BadStructure: the padding is not zero.
            FileProblem, Truncated: as `pread`.
        """
        if any(self.pread(start, end - start)):
            raise BadStructure(path=self.path, offset=start, what="padding is not zero")

    def check_unchanged(self) -> None:
        """Check that the file has not changed since it was opened.

        Raises:
            FileChanged: the file's size, times or inode differ, or its server has lost
                the file.
            FileProblem: the system does not report the file's status.
        """
        try:
            found = _identity(os.fstat(self.fd))
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise FileChanged(path=self.path) from error
            raise _problem(self.path, error) from error
        if found != self.state:
            raise FileChanged(path=self.path)

    def again(self) -> "OpenFile":
        """Return the same file with a descriptor of its own, as it was at opening.

        Raises:
            FileProblem: the system provides no descriptor.
        """
        other = OpenFile.__new__(OpenFile)
        other.path, other.size, other.state = self.path, self.size, self.state
        try:
            other.fd = os.dup(self.fd)
        except OSError as error:
            raise _problem(self.path, error) from error
        return other

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _open(path: str, within: int | None) -> int:
    try:
        if within is None:
            return os.open(path, _OPEN)
        name = os.path.basename(path)  # noqa: PTH119 - `path` may hold a NUL
        return os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=within)
    except (OSError, ValueError) as error:
        if within is not None and getattr(error, "errno", None) == errno.ELOOP:
            raise FileProblem(path=path, reason=_LINK) from error
        raise _problem(path, error) from error


def _problem(path: str, error: OSError | ValueError) -> FileProblem:
    return FileProblem(path=path or "a file without a name", reason=reason_of(error))


def _identity(status: os.stat_result) -> FileIdentity:
    # Without the change time: a rename over the file changes it, yet the inode stays.
    return (
        status.st_size,
        status.st_mtime_ns,
        status.st_ino,
        status.st_dev,
    )
