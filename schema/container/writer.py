"""`BundleWriter`: write a bundle so that it is there whole or not at all.

Blobs are appended as they are made, to a temporary file in the folder of the output;
`finish` adds program and header and gives the file its name. Whatever fails before,
the old file is untouched and the temporary file is gone. A writer holds a lock on its
temporary file; one that nobody has locked was left behind, and the next writer in the
folder removes it.
"""

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kvc.schema.codec import encode
from kvc.schema.container.header import HEADER_NBYTES, Header, pack_header
from kvc.schema.container.layout import PROGRAM_ALIGN, align_up, check_layout
from kvc.schema.errors import OutputProblem, OutputUnsynced
from kvc.schema.model import Program
from kvc.schema.version import FORMAT_VERSION

_TEMPORARY: Final = re.compile(r"\.kvc-\d+-[0-9a-f]+\.tmp")
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_EXAMINE: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BundleWriter:
    """Writes one bundle; use it in a `with` statement, which makes the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at `path`; nothing is made yet.

        Raises:
            OutputProblem: the folder is missing, or `path` is no file.
        """
        self.path = os.fspath(path)
        self._temporary: Path | None = None
        self._fd: int | None = None
        self._end = HEADER_NBYTES
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
                self._write(bytes(HEADER_NBYTES))
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

    def append(self, content: bytes | bytearray | memoryview, align: int) -> int:
        """Write a blob at the next multiple of `align`, and return its offset.

        Raises:
            OutputProblem: the system refuses, for example because the disk is full.
        """
        start = align_up(self._end, align)
        with self._problems():
            self._write(bytes(start - self._end))
            self._write(content)
        self._end = start + memoryview(content).nbytes
        return start

    def finish(self, program: Program) -> None:
        """Write program and header, make them durable, and name the file.

        Raises:
            OutputProblem: the system refuses; the old file is untouched.
            OutputUnsynced: the new file is there, but may not outlive a crash.
            FormatError: the program does not describe what was written: a bug.
        """
        raw = encode(program)
        start = align_up(self._end, PROGRAM_ALIGN)
        header = Header(
            version=FORMAT_VERSION,
            flags=0,
            file_nbytes=start + len(raw),
            program_offset=start,
            program_nbytes=len(raw),
            program_digest=hashlib.sha256(raw).digest(),
        )
        check_layout(program, header, self.path)
        self.append(raw, PROGRAM_ALIGN)
        with self._problems():
            fd, temporary = self._opened()
            os.lseek(fd, 0, os.SEEK_SET)
            self._write(pack_header(header))
            os.fsync(fd)
            temporary.rename(self._target)
        self.discard()
        try:
            _sync_folder(self._target.parent)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputUnsynced(path=self.path, reason=reason) from error

    def discard(self) -> None:
        """Remove the temporary file; after `finish` there is none."""
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
                raise OutputProblem(path=self.path, reason=reason) from None
            return
        if not stat.S_ISREG(mode):
            reason = (
                "it is a folder" if stat.S_ISDIR(mode) else "it is not a plain file"
            )
            raise OutputProblem(path=self.path, reason=reason)

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Turn what the system refuses into `OutputProblem`, and clean up."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.discard()
            reason = getattr(error, "strerror", None) or str(error)
            raise OutputProblem(path=self.path, reason=reason) from error


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
