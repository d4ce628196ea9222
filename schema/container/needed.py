"""List the data files that the bundles of a folder need.

In: a folder. Out: file names. If a file that may be a bundle cannot be read, an error
is raised, since the data files that it needs are unknown. A listing can miss a file
that is renamed while the folder is listed. The listing is therefore repeated until the
folder has not changed for 20 ms and every file in the folder has been read.
"""

import errno
import os
import stat
import time
from pathlib import Path
from typing import Final

from kvc.schema.container.bundle_file import BundleFile
from kvc.schema.container.kinds import BUNDLE_MAGIC
from kvc.schema.container.temporary import TEMPORARY
from kvc.schema.errors import CannotCollect, FileProblem, KvcError, reason_of
from kvc.schema.frozen import frozen

_ROUNDS: Final = 500
_PAUSE: Final = 0.01  # seconds
# Modification times are counted in ticks, of at most 10 ms on Linux.
_SETTLED_NS: Final = 20_000_000
# Without O_NONBLOCK opening a FIFO would wait for a writer. Links are followed.
_LOOK: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@frozen
class _Entry:
    """A file in a listing of a folder; the entry differs once the file has changed."""

    name: str
    inode: int
    device: int
    nbytes: int
    changed_ns: int
    mode: int


def needed_names(home: Path, folder: int, settled: bool = True) -> set[str]:
    """Return the names of the data files that the bundles in a folder refer to.

    Args:
        home: path of the folder.
        folder: descriptor of the folder, open for listing.
        settled: whether to wait until the folder has stopped changing; without
            waiting, a name can be missing from the result.

    Raises:
        CannotCollect: a file that may be a bundle cannot be read, or the folder keeps
            changing.
        FileProblem: the folder cannot be read.
    """
    known: dict[_Entry, set[str]] = {}
    for _ in range(_ROUNDS if settled else 1):
        entries, stays = _entries(home, folder)
        new = [entry for entry in entries if entry not in known]
        if stays and not new:
            break
        for entry in new:
            names = _names_in(home, folder, entry)
            if names is not None:
                known[entry] = names
        if settled and not stays:
            time.sleep(_PAUSE)
    else:
        if settled:
            reason = "files come, go or get other names in it all the time"
            raise CannotCollect(folder=str(home), path="", reason=reason, removed=())
    return set().union(*known.values())


def _entries(home: Path, folder: int) -> tuple[list[_Entry], bool]:
    """Return the files in a folder, and whether the folder has stopped changing."""
    before, now = os.fstat(folder).st_mtime_ns, time.time_ns()
    names = list_folder(home, folder)
    same = os.fstat(folder).st_mtime_ns == before
    stays = same and abs(now - before) > _SETTLED_NS
    entries = []
    for name in names:
        if TEMPORARY.fullmatch(name):
            continue  # its data file stays locked until the bundle is renamed
        try:
            status = os.stat(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise _unreadable(home, name, error) from error
            # A dangling link is not a bundle; a missing file may have been renamed.
            stays = stays and _is_link(name, folder)
            continue
        entries.append(
            _Entry(
                name=name,
                inode=status.st_ino,
                device=status.st_dev,
                nbytes=status.st_size,
                changed_ns=status.st_mtime_ns,
                mode=status.st_mode,
            )
        )
    return entries, stays


def list_folder(home: Path, folder: int) -> list[str]:
    """Return the names of all files in an open folder.

    Raises:
        FileProblem: the folder cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise FileProblem(path=str(home), reason=reason_of(error)) from error


def _is_link(name: str, folder: int) -> bool:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISLNK(mode)


def _names_in(home: Path, folder: int, entry: _Entry) -> set[str] | None:
    """Return the names of the data files that a file of a folder needs.

    The result is empty for a file that is not a bundle, None for a file that was
    removed.

    Raises:
        CannotCollect: the file is a bundle, or named like one, but cannot be read.
    """
    try:
        if not _may_be_bundle(folder, entry):
            return set()
        with BundleFile(home / entry.name) as bundle:
            return {file.name for file in bundle.program.files[1:]}
    except (OSError, KvcError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, FileNotFoundError):
            return None
        raise _unreadable(home, entry.name, error) from error


def _may_be_bundle(folder: int, entry: _Entry) -> bool:
    """Tell whether a file has the name of a bundle, or the first bytes of one.

    Raises:
        OSError: the file cannot be read.
    """
    if entry.name.lower().endswith(".kvc"):
        return not stat.S_ISDIR(entry.mode)
    return stat.S_ISREG(entry.mode) and _begins_like_one(entry.name, folder)


def _begins_like_one(name: str, folder: int) -> bool:
    fd = os.open(name, _LOOK, dir_fd=folder)
    try:
        return os.pread(fd, len(BUNDLE_MAGIC), 0) == BUNDLE_MAGIC
    finally:
        os.close(fd)


def _unreadable(home: Path, name: str, error: Exception) -> CannotCollect:
    reason = reason_of(error)
    return CannotCollect(folder=str(home), path=name, reason=reason, removed=())
