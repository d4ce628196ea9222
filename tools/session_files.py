"""Keep a session in a file between commands.

In: the path of the file. Out: the session as it was left there. Its new content
replaces the file if the command succeeds, and not otherwise.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import CannotWrite, reason_of
from kvc.schema.text import escape, plural
from kvc.tools.outputs import check_output

if TYPE_CHECKING:
    from kvc.runtime import Program, Session


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
