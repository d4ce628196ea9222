"""Files in progress, hidden under temporary names until they are complete.

In: bytes to append, or an offset at which the file is cut off. Out: a complete file
that survives a crash; a caller then renames or links it. The writer of a file holds a
lock on the file. A temporary file without a lock was left by a crash, and the next
writer in the folder removes it. If writing fails, the file is removed. An `AtomicFile`
replaces an old file; the old file is untouched until then.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kvc.schema.container.kinds import DATA_MAGIC
from kvc.schema.container.open_file import path_text, resolved
from kvc.schema.errors import CannotWrite, Unsynced, reason_of

TEMPORARY: Final = re.compile(r"\.kvc-\d+-[0-9a-f]+\.tmp")
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_EXAMINE: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TemporaryFile:
    """Writer of one temporary file; entering its `with` statement creates the file.

    Attributes:
        path: path of the output, for messages.
        folder: the folder where the file is created.
    """

    def __init__(self, path: str, folder: Path) -> None:
        """Remember the folder; nothing is created yet."""
        self.path = path
        self.folder = folder
        self._temporary: Path | None = None
        self._fd: int | None = None

    def __enter__(self) -> Self:
        """Create the temporary file.

        Raises:
            CannotWrite: the file cannot be created in the folder.
        """
        try:
            with self.problems():
                remove_stale(self.folder)
                while not self._create():
                    pass
        except BaseException:  # Ctrl-C too: `__exit__` is not called for it here
            self.discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def write(self, content: bytes | bytearray | memoryview) -> None:
        """Append bytes.

        Raises:
            CannotWrite: the system refuses, for example because the disk is full.
        """
        with self.problems():
            self._write(content)

    def cut(self, end: int) -> None:
        """Cut off the bytes of the file from `end` on; raise the errors of `write`."""
        with self.problems():
            fd, _ = self.opened()
            os.ftruncate(fd, end)
            os.lseek(fd, end, os.SEEK_SET)

    def make_durable(self, start: bytes = b"") -> None:
        """Overwrite the file's first bytes with `start`, then write the file to disk.

        Raises:
            CannotWrite: the system refuses, for example because the disk is full.
        """
        with self.problems():
            fd, _ = self.opened()
            os.lseek(fd, 0, os.SEEK_SET)
            self._write(start)
            os.fsync(fd)

    def discard(self) -> None:
        """Remove the file, unless it has been renamed or discarded."""
        temporary, fd = self._temporary, self._fd
        self._temporary = self._fd = None
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def opened(self) -> tuple[int, Path]:
        """Return the descriptor of the open file, and its path.

        Raises:
            ValueError: the file has been discarded, or `with` has not been entered.
        """
        if self._fd is None or self._temporary is None:
            raise ValueError("this writer is not open")
        return self._fd, self._temporary

    @contextmanager
    def problems(self) -> Iterator[None]:
        """Convert a system error to `CannotWrite`, and discard the file."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.discard()
            raise CannotWrite(path=self.path, reason=reason_of(error)) from error

    def _create(self) -> bool:
        """Create and lock a file; return False if it was removed before the lock."""
        self._temporary = self.folder / f".kvc-{os.getpid()}-{os.urandom(8).hex()}.tmp"
        self._fd = os.open(self._temporary, _CREATE, 0o666)
        with suppress(OSError):  # where files cannot be locked, no writer removes one
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Another writer may have removed it as stale before it was locked.
        if os.fstat(self._fd).st_nlink:
            return True
        self.discard()
        return False

    def _write(self, content: bytes | bytearray | memoryview) -> None:
        fd, _ = self.opened()
        rest = memoryview(content).cast("B")
        while rest.nbytes:
            rest = rest[os.write(fd, rest[: 1 << 30]) :]


def remove_stale(folder: Path) -> None:
    """Remove temporary files that no writer, on any machine, has locked."""
    for entry in folder.iterdir():
        if TEMPORARY.fullmatch(entry.name):
            with suppress(OSError):
                _remove_unlocked(entry)


def _remove_unlocked(entry: Path) -> None:
    """Remove a file if no writer has locked it.

    Raises:
        OSError: a writer has locked the file, or the system refuses.
    """
    fd = os.open(entry, _EXAMINE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        entry.unlink()
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk, so that they survive a crash.

    Raises:
        OSError: the system refuses.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class AtomicFile(TemporaryFile):
    """Writer of a file that replaces an old file; used in a `with` statement.

    Attributes:
        path: the path as it was given.
        target: the path with links followed.
        committed: whether the file at `target` is, or may be, the new file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Check `path`; nothing is created yet.

        Raises:
            CannotWrite: the folder is missing, or `path` is a data file or not a
                regular file.
        """
        super().__init__(path_text(path), Path())
        self.committed = False
        self.target = resolved(self.path, CannotWrite)
        with self.problems():
            reason = why_not_replaced(self.target)
        if reason:
            raise CannotWrite(path=self.path, reason=reason)
        self.folder = self.target.parent

    def commit(self, start: bytes = b"") -> None:
        """Write the file to disk and give it its name.

        Args:
            start: bytes that overwrite the first bytes of the file before the renaming.

        Raises:
            CannotWrite: the system refuses; the old file is untouched.
            Unsynced: the new file is in place, but may not survive a crash.
        """
        self.make_durable(start)
        with self.problems():
            _, temporary = self.opened()
            # Before the rename: an interrupt may come right after it.
            self.committed = True
            try:
                temporary.rename(self.target)
            except OSError:
                self.committed = False
                raise
        self.discard()
        try:
            sync_folder(self.folder)
        except OSError as error:
            raise Unsynced(path=self.path, reason=reason_of(error)) from error


def why_not_replaced(target: Path) -> str:
    """Return why a new file must not replace the file at `target`, or "".

    Devices, and data files that bundles need, must not be replaced.

    Raises:
        OSError: the system does not report the file's status.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return "" if target.parent.is_dir() else f"there is no folder {target.parent}"
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not stat.S_ISREG(mode):
        return "it is not a plain file"
    with target.open("rb") as file:
        if file.read(len(DATA_MAGIC)) == DATA_MAGIC:
            return "a data file is there, which bundles may need; give another name"
    return ""
