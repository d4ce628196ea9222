"""`NewDataFile`: a data file that is being written for a new bundle.

The data file gets its name before the bundle does, and never overwrites an intact file.
If an intact file with equal content already has the name, the bundle uses that file; a
damaged file of this name is replaced. The data file stays locked until the bundle has
its name, so that `kvc gc` does not remove the data file before that. If the bundle
cannot be written, a data file that was made for the bundle is removed.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvc.schema.container.bundle_file import DataFileReader
from kvc.schema.container.reused import names_file, open_locked
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

# Errors of file systems without hard links.
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
# Errors that mean a damaged data file; after other errors the file may be anyone's.
_DAMAGED: Final = (Truncated, DigestMismatch, BadStructure, BadProgram)


class NewDataFile(TemporaryFile):
    """The data file of a new bundle; write the bundle within its `with` statement.

    Attributes:
        keep: whether the file stays after the `with` statement.
        is_new: whether the file did not exist before.
        sync_error: why the file's name may not survive a crash; None if it will.
    """

    def __init__(self, path: str, folder: Path) -> None:
        super().__init__(path, folder)
        self.keep = False
        self.is_new = False
        self.sync_error: OSError | None = None
        self._target: Path | None = None  # set while the name may be ours to remove
        self._existing: DataFileReader | None = None

    def publish(self, name: str, digest: bytes) -> None:
        """Give the finished file its name, so that the name survives a crash.

        Args:
            name: the name in the file's folder; it has no folder of its own.
            digest: the digest of the file's index.

        Raises:
            CannotWrite: the system refuses, or a file with other content has this name.
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
        """Remove the file unless `keep` is set, and unlock it."""
        target, self._target = self._target, None
        if target is not None and not self.keep and self._fd is not None:
            with suppress(OSError):
                if names_file(target, self._fd):
                    target.unlink()
        super().discard()  # after the removal, since this unlocks
        if self._existing is not None:
            self._existing.close()
            self._existing = None

    def _link(self, target: Path) -> bool:
        """Give the file the name `target` by a hard link; False if it is taken."""
        fd, temporary = self.opened()
        self._target = target  # before the link: an interrupt may come right after it
        try:
            os.link(temporary, target, follow_symlinks=False)
        except FileExistsError:
            # NFS reports this too if its answer to the first request was lost.
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
        """Give the file a free name by renaming, for file systems without hard links.

        Another writer can take the name after the check that the name is free. The
        other writer's file has equal content, and this file replaces it. From then on
        the other writer's bundle may need this file, so that only `collect_garbage` may
        remove it.
        """
        _, temporary = self.opened()
        self._target = None
        if os.path.lexists(target):
            return False
        temporary.rename(target)
        self.is_new = True
        return True

    def _take(self, target: Path, digest: bytes) -> bool:
        """Use the existing file of this name if its content is equal, else replace it.

        Return False if the existing file was removed in the meantime.
        """
        try:
            found = open_locked(target)
        except (FileProblem, FormatError) as error:
            return self._replace_unreadable(target, error)
        if found is None:
            return False
        self._existing = found
        if found.digest != digest:
            raise CannotWrite(path=self.path, reason=f"{target} is another data file")
        try:
            check_data(found)
        except FormatError:
            self._replace(target)
        return True

    def _replace_unreadable(self, target: Path, error: Exception) -> bool:
        """Replace what has the name `target`, if it is a damaged data file or a link.

        Raises:
            CannotWrite: the existing file is perhaps not a data file.
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
        """Replace a damaged file by the new file, and keep it if the bundle fails."""
        _, temporary = self.opened()
        temporary.rename(target)
        self.is_new = True


def _is_blank(path: Path) -> bool:
    """Tell whether a file is empty or has only zeros, as a crash can leave it."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            if any(chunk):
                return False
    return True
