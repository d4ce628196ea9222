"""Where commands write: files that are checked before any work, folders, sessions.

A folder is written all or not at all. The session of a file is the one that was left
there; its new content replaces the file if the command succeeds, and not otherwise.
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
        name: as the user gave it.

    Raises:
        CannotWrite: it is a folder or a data file, or its folder is missing or refuses.
    """
    return _checked(name, lambda path: "")


def check_plain_output(name: str) -> Path:
    """Return the path of a file of text that can be written, in no bundle's place.

    Args:
        name: as the user gave it.

    Raises:
        CannotWrite: as `check_output`; or a bundle is there.
    """
    reason = "a bundle is there; give another name"
    return _checked(name, lambda path: reason if _is_bundle(path) else "")


def check_own_output(name: str, start: bytes) -> Path:
    """Return the path of a file that can be written, where nothing else is lost.

    Args:
        name: as the user gave it.
        start: what all files of this kind begin with. Such a file is replaced, and an
            empty one.

    Raises:
        CannotWrite: as `check_output`; or another file is there.
    """
    kept = (None, b"", start)
    return _checked(
        name, lambda path: "" if _start_of(path, len(start)) in kept else _OTHER
    )


def check_new_folder(name: str) -> Path:
    """Return the path of a folder that can be made.

    Args:
        name: as the user gave it.

    Raises:
        CannotWrite: something is there, or the folder that it is to lie in is missing
            or refuses.
    """
    if name and os.path.lexists(name.rstrip(os.sep)):
        raise CannotWrite(path=name, reason="it exists; give another name")
    return check_output(name.rstrip(os.sep))


def check_bundle_output(name: str, source: Path | None = None) -> Path:
    """Return the path of a bundle that can be written, where nothing else is lost.

    A file is replaced that is a bundle, is empty or is named like one.

    Args:
        name: as the user gave it.
        source: a folder that is read. Of its files only bundles are replaced.

    Raises:
        CannotWrite: as `check_output`; or another file is there.
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
    """Say why a file cannot be written, "" when nothing is known to speak against.

    Raises:
        OSError, ValueError: the system does not let anyone look.
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
    """Say why a bundle must not replace what is there, "" when it may.

    Raises:
        OSError: the system does not let anyone look.
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
    """Return the first bytes of a file, None where there is none.

    Raises:
        OSError: the system does not let anyone look.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(count)


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file, whole or not at all.

    Raises:
        CannotWrite: that is impossible; what was there is untouched.
    """
    from kvc.schema.container import AtomicFile

    with AtomicFile(path) as file:
        file.write(content)
        file.commit()


def write_folder(path: Path, archive: bytes) -> None:
    """Write the files of a zip archive to a folder that is not there yet.

    Raises:
        CannotWrite: something is there, or the system refuses.
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
    """Open the session that a file holds, a new one where there is none; save it.

    Raises:
        CannotWrite: the file cannot be written, or is in use.
        BadSnapshot, FileProblem: it cannot be restored.
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
    """Let no other command use a file's session meanwhile.

    The file itself is replaced, so the lock is that of another one beside it, which is
    there only so long.

    Raises:
        CannotWrite: another one does, or the system refuses.
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
    """Take a lock that nobody has, and whose file nobody has removed meanwhile."""
    reason = "another command is using this session; try again when it has ended"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = os.path.samestat(os.fstat(fd), lock.stat())
    except OSError as error:
        raise CannotWrite(path=str(path), reason=reason) from error
    if not same:
        raise CannotWrite(path=str(path), reason=reason)
