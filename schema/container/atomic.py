"""`AtomicFile`: a file that is there whole or not at all.

What is written goes to a temporary file in the folder of the output; `commit` makes it
durable and gives it its name. Whatever fails before, the old file is untouched and the
temporary file is gone. A writer holds a lock on its temporary file; one that nobody has
locked was left behind, and the next writer in the folder removes it.
"""

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from kvc.schema.errors import KvcError, OutputProblem, OutputUnsynced

_TEMPORARY: Final = re.compile(r"\.kvc-\d+-[0-9a-f]+\.tmp")
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_EXAMINE: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class AtomicFile:
    """Writes one file; use it in a `with` statement, which makes it.

    Attributes:
        path: as it was given.
        problem: what is raised, with `path` and `reason`, where the system refuses.
        unsynced: what is raised where the new file is there, but may not stay.
    """

    problem: ClassVar[type[KvcError]] = OutputProblem
    unsynced: ClassVar[type[KvcError]] = OutputUnsynced

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at `path`; nothing is made yet.

        Raises:
            OutputProblem: the folder is missing, or `path` is no file.
        """
        self.path = os.fspath(path)
        self._temporary: Path | None = None
        self._fd: int | None = None
        with self._problems():
            self._target = Path(self.path).resolve()
            self._check_target()

    def __enter__(self) -> Self:
        """Make a temporary file beside the target.

        Raises:
            OutputProblem: the folder refuses.
        """
        try:
            with self._problems():
                remove_stale(self._target.parent)
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
        """Write bytes behind those that are there.

        Raises:
            OutputProblem: the system refuses, for example because the disk is full.
        """
        with self._problems():
            self._write(content)

    def commit(self, start: bytes = b"") -> None:
        """Make what was written durable, and give the file its name.

        Args:
            start: bytes to write over the first ones before that.

        Raises:
            OutputProblem: the system refuses; the old file is untouched.
            OutputUnsynced: the new file is there, but may not outlive a crash.
        """
        with self._problems():
            fd, temporary = self._opened()
            os.lseek(fd, 0, os.SEEK_SET)
            self._write(start)
            os.fsync(fd)
            temporary.rename(self._target)
        self.discard()
        try:
            _sync_folder(self._target.parent)
        except OSError as error:
            reason = error.strerror or str(error)
            raise self.unsynced(path=self.path, reason=reason) from error

    def discard(self) -> None:
        """Remove the temporary file; after `commit` there is none."""
        temporary, fd = self._temporary, self._fd
        self._temporary = self._fd = None
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _create(self) -> bool:
        """Make and lock a temporary file; tell whether it is still there then."""
        name = f".kvc-{os.getpid()}-{secrets.token_hex(8)}.tmp"
        self._temporary = self._target.parent / name
        self._fd = os.open(self._temporary, _CREATE, 0o666)
        with suppress(OSError):  # where files cannot be locked, nobody removes any
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Another writer may have taken it for left behind before it was locked.
        if os.fstat(self._fd).st_nlink:
            return True
        self.discard()
        return False

    def _opened(self) -> tuple[int, Path]:
        """Return the open file and its path.

        Raises:
            ValueError: it has been discarded, or `with` has not been entered.
        """
        if self._fd is None or self._temporary is None:
            raise ValueError("this writer is not open")
        return self._fd, self._temporary

    def _write(self, content: bytes | bytearray | memoryview) -> None:
        fd, _ = self._opened()
        rest = memoryview(content).cast("B")
        while rest.nbytes:
            rest = rest[os.write(fd, rest[: 1 << 30]) :]

    def _check_target(self) -> None:
        """Refuse to replace what is not a file: a rename would destroy a device."""
        try:
            mode = self._target.stat().st_mode
        except FileNotFoundError:
            if not self._target.parent.is_dir():
                reason = f"there is no folder {self._target.parent}"
                raise self.problem(path=self.path, reason=reason) from None
            return
        if not stat.S_ISREG(mode):
            reason = (
                "it is a folder" if stat.S_ISDIR(mode) else "it is not a plain file"
            )
            raise self.problem(path=self.path, reason=reason)

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Turn what the system refuses into `OutputProblem`, and clean up."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.discard()
            reason = getattr(error, "strerror", None) or str(error)
            raise self.problem(path=self.path, reason=reason) from error


def remove_stale(folder: Path) -> None:
    """Remove temporary files that no writer, here or on another machine, holds."""
    for entry in folder.iterdir():
        if _TEMPORARY.fullmatch(entry.name):
            with suppress(OSError):
                _remove_unlocked(entry)


def _remove_unlocked(entry: Path) -> None:
    """Remove a file if its lock can be taken.

    Raises:
        OSError: a writer holds it, or the system refuses.
    """
    fd = os.open(entry, _EXAMINE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        entry.unlink()
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
