"""`BundleWriter`: write a bundle so that it is there whole or not at all.

Blobs are appended as they are made, to a temporary file in the folder of the output;
`finish` adds program and header and gives the file its name. Whatever fails before,
the old file is untouched and the temporary file is gone.
"""

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
from kvc.schema.errors import OutputProblem
from kvc.schema.model import Program
from kvc.schema.version import FORMAT_VERSION

_TEMPORARY: Final = re.compile(r"\.kvc-(\d+)-[0-9a-f]+\.tmp")
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class BundleWriter:
    """Writes one bundle; use it in a `with` statement."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a temporary file beside `path`.

        Raises:
            OutputProblem: the folder is missing or refuses, or `path` is no file.
        """
        self.path = os.fspath(path)
        with self._problems():
            self._target = Path(self.path).resolve()
            self._check_target()
            remove_stale(self._target.parent)
            name = f".kvc-{os.getpid()}-{secrets.token_hex(8)}.tmp"
            self._temporary = self._target.parent / name
            self._fd = os.open(self._temporary, _CREATE, 0o666)
        self._open = True
        self._end = HEADER_NBYTES
        with self._problems():
            self._write(bytes(HEADER_NBYTES))

    def __enter__(self) -> Self:
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
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._write(pack_header(header))
            os.fsync(self._fd)
            self._temporary.rename(self._target)
        self._close()
        with self._problems():
            _sync_folder(self._target.parent)

    def discard(self) -> None:
        """Remove the temporary file; nothing happens after `finish`."""
        if self._open:
            self._close()
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        self._open = False
        with suppress(OSError):
            os.close(self._fd)

    def _write(self, content: bytes | bytearray | memoryview) -> None:
        rest = memoryview(content).cast("B")
        while rest.nbytes:
            rest = rest[os.write(self._fd, rest[: 1 << 30]) :]

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
            if getattr(self, "_open", False):
                self.discard()
            reason = getattr(error, "strerror", None) or str(error)
            raise OutputProblem(path=self.path, reason=reason) from error


def remove_stale(folder: Path) -> None:
    """Remove temporary files that processes left behind that are no more."""
    for entry in folder.iterdir():
        match = _TEMPORARY.fullmatch(entry.name)
        if match and not _is_alive(int(match[1])):
            with suppress(OSError):
                entry.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
