"""`AtomicFile`: a file that is there whole or not at all.

What is written goes to a temporary file in the folder of the output; `commit` makes it
durable and gives it its name. Whatever fails before, the old file is untouched and the
temporary file is gone.
"""

import os
import stat
from pathlib import Path
from typing import ClassVar

from kvc.schema.container.temporary import TemporaryFile, sync_folder
from kvc.schema.errors import KvcError, OutputUnsynced


class AtomicFile(TemporaryFile):
    """Writes one file; use it in a `with` statement.

    Attributes:
        path: as it was given.
        target: the same, links followed.
        committed: whether `target` is, or may be, the new file.
        unsynced: what is raised where the new file is there, but may not stay.
    """

    unsynced: ClassVar[type[KvcError]] = OutputUnsynced

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at `path`; nothing is made yet.

        Raises:
            OutputProblem: the folder is missing, or `path` is no file.
        """
        super().__init__(os.fspath(path), Path())
        self.committed = False
        with self.problems():
            self.target = Path(self.path).resolve()
            self._check_target()
        self.folder = self.target.parent

    def commit(self, start: bytes = b"") -> None:
        """Make what was written durable, and give the file its name.

        Args:
            start: bytes to write over the first ones before that.

        Raises:
            OutputProblem: the system refuses; the old file is untouched.
            OutputUnsynced: the new file is there, but may not outlive a crash.
        """
        self.make_durable(start)
        with self.problems():
            self._take_name()
        self.discard()
        try:
            sync_folder(self.folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise self.unsynced(path=self.path, reason=reason) from error

    def _take_name(self) -> None:
        _, temporary = self.opened()
        self.committed = True  # before it is: an interrupt may come right behind
        try:
            temporary.rename(self.target)
        except OSError:
            self.committed = False
            raise

    def _check_target(self) -> None:
        """Refuse to replace what is not a file: a rename would destroy a device."""
        try:
            mode = self.target.stat().st_mode
        except FileNotFoundError:
            if not self.target.parent.is_dir():
                reason = f"there is no folder {self.target.parent}"
                raise self.problem(path=self.path, reason=reason) from None
            return
        if not stat.S_ISREG(mode):
            reason = (
                "it is a folder" if stat.S_ISDIR(mode) else "it is not a plain file"
            )
            raise self.problem(path=self.path, reason=reason)
