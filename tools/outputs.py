"""Where commands write: files that are checked before any work, folders, sessions.

A folder is written completely or not at all. A session that is opened from a file is
saved to the file again if the command succeeds, and not otherwise.
"""

import fcntl
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvc.schema.errors import CannotWrite, reason_of
from kvc.schema.text import escape, plural

if TYPE_CHECKING:
    from kvc.runtime import Program, Session

_OTHER: Final = "another file is there; give another name, or remove it"


def check_output(name: str) -> Path:
    """Return the path of a file that can be written.

    Args:
        name: path as the user wrote it.

    Raises:
        CannotWrite: the path is a folder or a data file, or its folder is missing or
            not writable.
    """
    return _checked(name, lambda path: "")


def check_plain_output(name: str) -> Path:
    """Return the path of a text file that can be written and would replace no bundle.

    Args:
        name: path as the user wrote it.

    Raises:
        CannotWrite: as `check_output`; or a bundle has this path.
    """
    reason = "a bundle is there; give another name"
    return _checked(name, lambda path: reason if _is_bundle(path) else "")


def check_own_output(name: str, start: bytes) -> Path:
    """Return the path of a file that can be written and replaces only its own kind.

    Args:
        name: path as the user wrote it.
        start: bytes that every file of this kind begins with. A file that begins with
            them, or is empty, can be replaced.

    Raises:
        CannotWrite: as `check_output`; or a file of another kind has this path.
    """
    kept = (None, b"", start)
    return _checked(
        name, lambda path: "" if _start_of(path, len(start)) in kept else _OTHER
    )


def check_new_folder(name: str) -> Path:
    """Return the path of a folder that can be made.

    Args:
        name: path as the user wrote it.

    Raises:
        CannotWrite: the path exists, or its parent folder is missing or not writable.
    """
    if name and os.path.lexists(name.rstrip(os.sep)):
        raise CannotWrite(path=name, reason="it exists; give another name")
    return check_output(name.rstrip(os.sep))


def check_bundle_output(name: str, source: Path | None = None) -> Path:
    """Return the path of a bundle that can be written and replaces only a bundle.

    An existing file can be replaced if it is a bundle, is empty, or is named like a
    bundle.

    Args:
        name: path as the user wrote it.
        source: folder of the model that is compiled. Of the files in it only bundles
            can be replaced.

    Raises:
        CannotWrite: as `check_output`; or another kind of file has this path.
    """
    return _checked(name, lambda path: _why_kept(path, source))


def _checked(name: str, why_kept: Callable[[Path], str]) -> Path:
    path = Path(name)
    try:
        reason = _reason(name, path) or why_kept(path)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
    if reason:
        raise CannotWrite(path=name or "an output without a name", reason=reason)
    return path


def _reason(name: str, path: Path) -> str:
    """Say why a file cannot be written, "" if no reason is known.

    Raises:
        OSError, ValueError: the system cannot look up the path.
    """
    from kvc.schema.container import why_not_replaced

    folder = path.parent
    if not name:
        return "give the name of a file"
    if name.endswith(os.sep) or path.is_dir():
        return "it is a folder; give the name of a file"
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} may not be written to"
    return why_not_replaced(path) if path.exists() else ""


def _why_kept(path: Path, source: Path | None) -> str:
    """Say why a bundle must not replace the file at a path, "" if it can.

    Raises:
        OSError: the system cannot read the file.
    """
    if not path.is_file() or _is_bundle(path):
        return ""
    if source is not None and path.resolve().parent == source.resolve():
        return "it is a file of the model; give another name"
    if path.stat().st_size and path.suffix != ".kvc":
        return _OTHER
    return ""


def _is_bundle(path: Path) -> bool:
    from kvc.schema.container.kinds import BUNDLE_MAGIC

    return _start_of(path, len(BUNDLE_MAGIC)) == BUNDLE_MAGIC


def _start_of(path: Path, count: int) -> bytes | None:
    """Return the first `count` bytes of a file, None if there is no file.

    Raises:
        OSError: the system cannot read the file.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(count)


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file, completely or not at all.

    Raises:
        CannotWrite: the file cannot be written; an existing file is unchanged.
    """
    from kvc.schema.container import AtomicFile

    with AtomicFile(path) as file:
        file.write(content)
        file.commit()


def write_folder(path: Path, archive: bytes) -> None:
    """Write the files of a zip archive to a new folder.

    Raises:
        CannotWrite: the path exists, or the system cannot write to it.
    """
    if os.path.lexists(path):
        raise CannotWrite(path=str(path), reason="it exists; give another name")
    try:
        own = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            folder = own / path.name
            folder.mkdir()  # with the permissions that this process gives
            with zipfile.ZipFile(io.BytesIO(archive)) as files:
                files.extractall(folder)
            folder.rename(path)
        finally:
            shutil.rmtree(own, ignore_errors=True)
    except OSError as error:
        raise CannotWrite(path=str(path), reason=reason_of(error)) from error


@contextmanager
def kept_session(
    program: "Program", name: str, open_new: Callable[[], "Session"]
) -> Iterator["Session"]:
    """Open the session of a file, or a new session; save it to the file at the end.

    Raises:
        CannotWrite: the file cannot be written, or another command is using it.
        BadSnapshot, FileProblem: the session cannot be restored from the file.
    """
    # One file has one lock, whatever links lead to it.
    path = check_output(name).resolve()
    with _alone(path):
        there = path.exists()
        with program.restore(path) if there else open_new() as session:
            _tell_pending(name, session)
            yield session
            session.save(path)


def _tell_pending(name: str, session: "Session") -> None:
    """Print to stderr the tokens that were generated but not run yet."""
    rows = [list(row) for row in session.pending if row]
    if rows:
        tokens = plural(sum(map(len, rows)), "token")
        text = f"note: {escape(name)} has {tokens} generated but not run yet, {rows}"
        click.echo(f"{text}; to continue the text, put them first", err=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let no other command use the session of a file within the context.

    Saving replaces the file itself, so the lock is held on a separate lock file beside
    it, which is removed at the end.

    Raises:
        CannotWrite: another command uses the session, or the system cannot lock.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotWrite(path=str(path), reason=reason_of(error)) from error
    try:
        _take(fd, lock, path)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _take(fd: int, lock: Path, path: Path) -> None:
    """Lock a lock file, unless another process holds it or has removed the file."""
    reason = "another command is using this session; try again when it has ended"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = os.path.samestat(os.fstat(fd), lock.stat())
    except OSError as error:
        raise CannotWrite(path=str(path), reason=reason) from error
    if not same:
        raise CannotWrite(path=str(path), reason=reason)
