"""`NewDataFile`: a data file being written, which gets its name before its bundle does.

It is linked to its name, never over another file. If a whole and equal file has the
name, that is used; a damaged one is replaced. The file stays locked until the bundle is
in place, so that `kvc gc` does not remove it in between. If the bundle fails, a file
that was made for it is removed.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvc.schema.container.reused import names_file, open_locked
from kvc.schema.container.sealed import DataFileReader
from kvc.schema.container.temporary import TemporaryFile, sync_folder
from kvc.schema.container.verify import check_data
from kvc.schema.errors import (
    BadMagic,
    BadProgram,
    BadStructure,
    CannotWrite,
    DigestMismatch,
    FileProblem,
    FormatError,
    Truncated,
)

# What file systems without hard links say.
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
# What a damaged data file is; other errors tell of somebody else's file.
_DAMAGED: Final = (Truncated, DigestMismatch, BadStructure, BadProgram)


class NewDataFile(TemporaryFile):
    """A data file; use it in a `with` statement around the writing of the bundle.

    Attributes:
        keep: whether to leave it in its place at the end.
        is_new: whether it was not there before.
        sync_error: why its name may not outlive a crash; None where it does.
    """

    def __init__(self, path: str, folder: Path) -> None:
        super().__init__(path, folder)
        self.keep = False
        self.is_new = False
        self.sync_error: OSError | None = None
        self._target: Path | None = None  # set while the name may be ours to remove
        self._existing: DataFileReader | None = None

    def publish(self, name: str, digest: bytes) -> None:
        """Give the finished file its name, and make that durable.

        Args:
            name: plain; the file gets it in its folder.
            digest: of its index.

        Raises:
            CannotWrite: the system refuses, or another file has this name.
        """
        target = self.folder / name
        with self.problems():
            while not self._link(target) and not self._take(target, digest):
                pass
        try:
            sync_folder(self.folder)
        except OSError as error:
            self.sync_error = error

    def discard(self) -> None:
        """Remove what is not to be kept, and unlock it."""
        target, self._target = self._target, None
        if target is not None and not self.keep and self._fd is not None:
            with suppress(OSError):
                if names_file(target, self._fd):
                    target.unlink()
        super().discard()  # after that, since it unlocks
        if self._existing is not None:
            self._existing.close()
            self._existing = None

    def _link(self, target: Path) -> bool:
        """Give the file its name; tell whether that was free."""
        fd, temporary = self.opened()
        self._target = target  # before it is: an interrupt may come right after
        try:
            os.link(temporary, target, follow_symlinks=False)
        except FileExistsError:
            # NFS says so too where the answer to the first request was lost.
            if not names_file(target, fd):
                self._target = None
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._rename(target)
        self.is_new = True
        return True

    def _rename(self, target: Path) -> bool:
        """Give the file its name on a file system without hard links, if it is free.

        Another writer may take the name in between, and its equal file be replaced. So
        the file is nobody's to remove from then on, other than by `collect_garbage`.
        """
        _, temporary = self.opened()
        self._target = None
        if os.path.lexists(target):
            return False
        temporary.rename(target)
        self.is_new = True
        return True

    def _take(self, target: Path, digest: bytes) -> bool:
        """Use or replace the file that has the name; tell if it has gone meanwhile."""
        try:
            found = open_locked(target)
        except (FileProblem, FormatError) as error:
            return self._replace_unreadable(target, error)
        if found is None:
            return False
        self._existing = found
        if found.digest != digest:
            reason = f"{target} is another data file"
            raise CannotWrite(path=self.path, reason=reason)
        try:
            check_data(found)
        except FormatError:
            self._replace(target)
        return True

    def _replace_unreadable(self, target: Path, error: Exception) -> bool:
        """Replace what has the name and is a damaged data file, or a link.

        Raises:
            CannotWrite: it may be anything else.
        """
        try:
            mode = target.lstat().st_mode
        except FileNotFoundError:
            return False
        blank = isinstance(error, BadMagic) and _is_blank(target)
        if not (isinstance(error, _DAMAGED) or blank or stat.S_ISLNK(mode)):
            reason = f"{error}; it is in the way of the data file: move it away"
            raise CannotWrite(path=self.path, reason=reason) from error
        self._replace(target)
        return True

    def _replace(self, target: Path) -> None:
        """Put this file in the place of a damaged one, for good."""
        _, temporary = self.opened()
        temporary.rename(target)
        self.is_new = True


def _is_blank(path: Path) -> bool:
    """Return whether a file is empty or zeros, as a crash may leave it."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            if any(chunk):
                return False
    return True
