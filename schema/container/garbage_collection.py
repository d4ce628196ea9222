"""Find and remove the data files of a folder that no bundle in the folder needs.

In: a folder. Out: the files that were removed, and the files that were not removed,
with reasons. A file is removed only after kvc has locked the file and then read all
bundles again, since a writer keeps the data file of a new bundle locked until the
bundle has its name. Only this folder is searched: a bundle in another folder does not
protect a data file in this folder, unless this folder has a link to the bundle.
Temporary files of interrupted writers are removed too.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvc.schema.container.kinds import DATA_MAGIC
from kvc.schema.container.lookup import open_folder
from kvc.schema.container.needed import list_folder, needed_names
from kvc.schema.container.open_file import Folder, path_text
from kvc.schema.container.reused import names_file
from kvc.schema.container.temporary import TEMPORARY
from kvc.schema.errors import CannotCollect, reason_of
from kvc.schema.frozen import frozen

# Names as `save_bundle` makes them; other files that end in .kvd are not kvc's to
# remove.
_OURS: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*-[0-9a-f]{12}\.kvd")
_LOOK: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_AT_ONCE: Final = 100  # open files


@frozen
class Garbage:
    """A file that no bundle needs."""

    name: str
    nbytes: int


@frozen
class Failure:
    """A file that no bundle needs, and why it was not removed."""

    name: str
    nbytes: int
    reason: str


@frozen
class Collected:
    """Result of `collect_garbage`.

    Attributes:
        removed: the removed files; in a dry run, the files that would be removed.
        held: unneeded files that were not removed, since another process locks them.
        failed: unneeded files that could not be locked or removed.
    """

    removed: tuple[Garbage, ...]
    held: tuple[Garbage, ...]
    failed: tuple[Failure, ...]


@dataclass(slots=True)
class _Collection:
    """A garbage collection in progress, in an open folder."""

    home: Path
    folder: int
    dry_run: bool
    removed: list[Garbage] = field(default_factory=list)
    held: list[Garbage] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)

    def take(self, found: Iterable[Garbage]) -> None:
        """Lock files, read all bundles again, and remove the files that none needs."""
        with ExitStack() as stack:
            locked = [(one, self._lock(one, stack)) for one in found]
            free = [(one, fd) for one, fd in locked if fd is not None]
            needed = needed_names(self.home, self.folder) if free else set()
            for one, fd in free:
                if one.name not in needed:
                    self._remove(one, fd)

    def _lock(self, one: Garbage, stack: ExitStack) -> int | None:
        """Lock a file until `stack` is closed; return its descriptor or None.

        The result is None if the file cannot be locked.
        """
        try:
            fd = _open_to_lock(one.name, self.folder)
            stack.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            self.held.append(one)
            return None
        except OSError as error:
            self._fail(one, f"it cannot be locked: {reason_of(error)}")
            return None
        return fd

    def _remove(self, one: Garbage, fd: int) -> None:
        """Remove a file, if the file of this name is still the locked file `fd`."""
        try:
            if not names_file(one.name, fd, self.folder):
                return
            if not self.dry_run:
                os.unlink(one.name, dir_fd=self.folder)
        except OSError as error:
            self._fail(one, reason_of(error))
            return
        self.removed.append(one)

    def _fail(self, one: Garbage, reason: str) -> None:
        self.failed.append(Failure(one.name, one.nbytes, reason))


def unreferenced(folder: Folder) -> tuple[Garbage, ...]:
    """Return the files that no bundle in the folder needs, in the order of their names.

    Raises:
        CannotCollect: a bundle in the folder cannot be read, so its data files are
            unknown.
        FileProblem: the folder cannot be read.
    """
    home = Path(path_text(folder))
    with open_folder(folder, listed=True) as fd:
        found = list(_garbage(home, fd))
        needed = needed_names(home, fd) if found else set()
        return tuple(one for one in found if one.name not in needed)


def collect_garbage(folder: Folder, dry_run: bool = False) -> Collected:
    """Remove the files in a folder that no bundle in the folder needs.

    Args:
        folder: holds bundles and data files side by side.
        dry_run: whether to remove nothing, and only return what would be removed.

    Raises:
        CannotCollect: a bundle in the folder cannot be read; no further file is
            removed.
        FileProblem: the folder cannot be read.
    """
    home = Path(path_text(folder))
    with open_folder(folder, listed=True) as fd:
        done = _Collection(home, fd, dry_run)
        seen = needed_names(home, fd, settled=False)
        found = [one for one in _garbage(home, fd) if one.name not in seen]
        try:
            for start in range(0, len(found), _AT_ONCE):
                done.take(found[start : start + _AT_ONCE])
        except CannotCollect as error:
            gone = () if dry_run else tuple(one.name for one in done.removed)
            raise CannotCollect(
                folder=error.folder, path=error.path, reason=error.reason, removed=gone
            ) from error
        if done.removed and not dry_run:
            with suppress(
                OSError
            ):  # a file that reappears after a crash is removed next time
                os.fsync(fd)
    return Collected(tuple(done.removed), tuple(done.held), tuple(done.failed))


def _garbage(home: Path, folder: int) -> Iterator[Garbage]:
    """Yield the data files and temporary files of kvc in a folder."""
    for name in list_folder(home, folder):
        ours = bool(_OURS.fullmatch(name))
        if ours or TEMPORARY.fullmatch(name):
            with _opened(name, folder) as fd:
                if fd is not None and (not ours or _begins(fd, DATA_MAGIC)):
                    yield Garbage(name, os.fstat(fd).st_size)


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int | None]:
    """Open a regular file of a folder and yield its descriptor; None if that fails."""
    fd = None
    try:
        with suppress(OSError):
            fd = os.open(name, os.O_RDONLY | _LOOK, dir_fd=folder)
        plain = fd is not None and stat.S_ISREG(os.fstat(fd).st_mode)
        yield fd if plain else None
    finally:
        if fd is not None:
            os.close(fd)


def _begins(fd: int, magic: bytes) -> bool:
    """Tell whether a file begins with `magic`; False if it cannot be read."""
    try:
        return os.pread(fd, len(magic), 0) == magic
    except OSError:
        return False


def _open_to_lock(name: str, folder: int) -> int:
    """Open a file, writable if permitted, since NFS locks only writable files.

    Raises:
        OSError: the system refuses.
    """
    try:
        return os.open(name, os.O_RDWR | _LOOK, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY):
            raise
        return os.open(name, os.O_RDONLY | _LOOK, dir_fd=folder)
