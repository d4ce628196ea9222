"""`AtomicFile`: a file that is written completely or not at all.

The content goes to a temporary file in the folder of the output; `commit` makes it
durable and renames it. If anything fails before, the old file is untouched and the
temporary file is removed.
"""

import os
import stat
from pathlib import Path

from kvc.schema.container.kinds import DATA_MAGIC
from kvc.schema.container.paths import path_text, resolved
from kvc.schema.container.temporary import TemporaryFile, sync_folder
from kvc.schema.errors import CannotWrite, Unsynced, reason_of


class AtomicFile(TemporaryFile):
    """Writes one file; use it in a `with` statement.

    Attributes:
        path: as it was given.
        target: the same, links followed.
        committed: whether `target` is, or may be, the new file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at `path`; nothing is made yet.

        Raises:
            CannotWrite: the folder is missing, `path` is no file, or a data file.
        """
        super().__init__(path_text(path), Path())
        self.committed = False
        self.target = resolved(self.path, CannotWrite)
        with self.problems():
            reason = why_not_replaced(self.target)
        if reason:
            raise CannotWrite(path=self.path, reason=reason)
        self.folder = self.target.parent

    def commit(self, start: bytes = b"") -> None:
        """Make what was written durable, and give the file its name.

        Args:
            start: bytes to write over the first ones before that.

        Raises:
            CannotWrite: the system refuses; the old file is untouched.
            Unsynced: the new file is there, but may not outlive a crash.
        """
        self.make_durable(start)
        with self.problems():
            self._take_name()
        self.discard()
        try:
            sync_folder(self.folder)
        except OSError as error:
            reason = reason_of(error)
            raise Unsynced(path=self.path, reason=reason) from error

    def _take_name(self) -> None:
        _, temporary = self.opened()
        self.committed = True  # before it is: an interrupt may come right after
        try:
            temporary.rename(self.target)
        except OSError:
            self.committed = False
            raise


def why_not_replaced(target: Path) -> str:
    """Say why a file must not be put in this place, "" when nothing is against it.

    A rename would destroy a device, or a data file that bundles need.

    Raises:
        OSError: the system does not let anyone look.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        there = target.parent.is_dir()
        return "" if there else f"there is no folder {target.parent}"
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not stat.S_ISREG(mode):
        return "it is not a plain file"
    with target.open("rb") as file:
        if file.read(len(DATA_MAGIC)) == DATA_MAGIC:
            return "a data file is there, which bundles may need; give another name"
    return ""
