"""Find and remove the data files of a folder that no bundle there needs.

In: a folder. Out: what was removed and what was left since somebody holds it. A file is
locked first, then all bundles are read again, and only then it goes: a writer holds the
data file of its bundle until the bundle is there. Nothing outside the folder is looked
at, so a bundle elsewhere that finds its data here does not count. Temporary files that
a writer left behind go as well.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvc.schema.container.bundle_file import BundleFile
from kvc.schema.container.kinds import BUNDLE_MAGIC, DATA_MAGIC
from kvc.schema.container.lookup import Folder, open_folder
from kvc.schema.container.reused import names_file
from kvc.schema.container.temporary import TEMPORARY, sync_folder
from kvc.schema.errors import CannotCollect, FileProblem, KvcError

# As `save_bundle` names them; what else ends in .kvd may be anyone's.
_OURS: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*-[0-9a-f]{12}\.kvd")
_LOOK: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_AT_ONCE: Final = 100  # open files


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file that nothing needs."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What `collect_garbage` did.

    Attributes:
        removed: files that are gone, or would be.
        held: files that nothing needs yet, but that somebody has locked.
    """

    removed: tuple[Garbage, ...]
    held: tuple[Garbage, ...]


def unreferenced(folder: Folder) -> tuple[Garbage, ...]:
    """Return the files in a folder that no bundle in it needs, by name.

    Raises:
        CannotCollect: a bundle in it cannot be read, so that what it needs is unknown.
        FileProblem: the folder cannot be read.
    """
    home = Path(folder)
    with open_folder(home) as fd:
        found = list(_garbage(home, fd))
    needed = _needed(home) if found else set()
    return tuple(one for one in found if one.name not in needed)


def collect_garbage(folder: Folder, dry_run: bool = False) -> Collected:
    """Remove the files in a folder that no bundle in it needs.

    Args:
        folder: bundles and data files lie in it side by side.
        dry_run: only say what would be removed.

    Raises:
        CannotCollect: a bundle in it cannot be read; nothing is removed from then on.
        FileProblem: the folder cannot be read, or a file cannot be removed.
    """
    home = Path(folder)
    found = unreferenced(home)
    removed, held = list[Garbage](), list[Garbage]()
    for start in range(0, len(found), _AT_ONCE):
        _collect(home, found[start : start + _AT_ONCE], dry_run, removed, held)
    if removed and not dry_run:
        with suppress(OSError):  # what comes back after a crash goes the next time
            sync_folder(home)
    return Collected(tuple(removed), tuple(held))


def _collect(
    home: Path,
    found: Iterable[Garbage],
    dry_run: bool,
    removed: list[Garbage],
    held: list[Garbage],
) -> None:
    """Lock files, look again who needs them, and remove those that are still free."""
    with ExitStack() as stack:
        locked: list[tuple[Garbage, int]] = []
        for one in found:
            fd = stack.enter_context(_locked(home, one))
            if fd is None:
                held.append(one)
            else:
                locked.append((one, fd))
        needed = _needed(home) if locked else set()
        for one, fd in locked:
            path = home / one.name
            if one.name not in needed and names_file(path, fd):
                if not dry_run:
                    _remove(path)
                removed.append(one)


def _garbage(home: Path, folder: int) -> Iterator[Garbage]:
    """Yield all files in a folder that writers of bundles make and forget."""
    for name in _names(folder):
        ours = bool(_OURS.fullmatch(name))
        if ours or TEMPORARY.fullmatch(name):
            with _opened(name, folder) as fd:
                if fd is not None and (not ours or _begins(fd, DATA_MAGIC)):
                    yield Garbage(name, os.fstat(fd).st_size)


def _needed(home: Path) -> set[str]:
    """Return the names of the data files that the bundles in a folder refer to.

    Raises:
        CannotCollect: a bundle cannot be read.
    """
    needed: set[str] = set()
    for path in _bundles(home):
        try:
            with BundleFile(path) as bundle:
                needed |= {file.name for file in bundle.program.files[1:]}
        except KvcError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                continue  # it went away since the folder was read
            raise CannotCollect(
                folder=str(home), path=path.name, reason=str(error)
            ) from error
    return needed


def _bundles(home: Path) -> Iterable[Path]:
    """Yield the files in a folder that are bundles, or called so."""
    with open_folder(home) as folder:
        for name in _names(folder):
            if TEMPORARY.fullmatch(name):
                continue  # its data file is locked until it has its name
            with _opened(name, folder) as fd:
                called = name.lower().endswith(".kvc") and _is_file(name, folder)
                if called or (fd is not None and _begins(fd, BUNDLE_MAGIC)):
                    yield home / name


def _names(folder: int) -> list[str]:
    return sorted(os.listdir(folder))


def _is_file(name: str, folder: int) -> bool:
    """Return whether a name may be a bundle's: folders and links are none here."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return False
    return not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode)


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int | None]:
    """Open a plain file of a folder; yield None where there is none to read."""
    fd = None
    try:
        with suppress(OSError):
            fd = os.open(name, _LOOK, dir_fd=folder)
        plain = fd is not None and stat.S_ISREG(os.fstat(fd).st_mode)
        yield fd if plain else None
    finally:
        if fd is not None:
            os.close(fd)


def _begins(fd: int, magic: bytes) -> bool:
    """Return whether a file begins like this; what cannot be read does not."""
    try:
        return os.pread(fd, len(magic), 0) == magic
    except OSError:
        return False


@contextmanager
def _locked(home: Path, one: Garbage) -> Iterator[int | None]:
    """Hold the lock of a file; yield None when somebody else does."""
    with open_folder(home) as folder, _opened(one.name, folder) as fd:
        if fd is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                fd = None
        yield fd


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileProblem(path=str(path), reason=reason) from error
