"""`ReusedFile`: a data file of another bundle whose blobs a new bundle refers to.

It is held locked until the new bundle is there, so that nobody collects it as garbage
in between. A blob is checked before it is referred to.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kvc.schema.container.data_file import DataFileReader
from kvc.schema.container.lookup import Folder, open_folder
from kvc.schema.container.verify import check_entry
from kvc.schema.errors import FileProblem
from kvc.schema.model import Blob, DataFile


class ReusedFile:
    """An open and locked data file."""

    def __init__(self, path: Folder) -> None:
        """Open and lock a data file; waits for a writer that is about to finish.

        Raises:
            FileProblem: it cannot be read, or was removed meanwhile.
            FormatError: it is damaged, or is no data file.
        """
        self._file = open_locked(Path(path).resolve())
        self._index = {entry.digest: i for i, entry in enumerate(self._file.blobs)}

    @property
    def entry(self) -> DataFile:
        """Return what a program says of this file."""
        return DataFile(Path(self._file.path).name, self._file.digest)

    @property
    def path(self) -> str:
        """Return where it is."""
        return self._file.path

    def find(self, blob: Blob) -> Blob | None:
        """Return where this file has a blob, None when it has it not.

        Raises:
            FormatError: the blob is damaged here.
        """
        i = self._index.get(blob.digest)
        if i is None or self._file.blobs[i].nbytes != blob.nbytes:
            return None
        check_entry(self._file, i)
        return self._file.blobs[i]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def open_locked(path: Path) -> DataFileReader:
    """Open a data file by its own name and share its lock, which closing gives back.

    Raises:
        FileProblem: it cannot be read, or was removed while this waited.
        FormatError: it is damaged, or is no data file.
    """
    with open_folder(path.parent) as folder:
        file = DataFileReader(path, within=folder)
    try:
        with suppress(OSError):  # where files cannot be locked, gc removes none
            fcntl.flock(file.fd, fcntl.LOCK_SH)
        if not names_file(path, file.fd):
            reason = "it was removed while it was about to be used"
            raise FileProblem(path=str(path), reason=reason)
    except BaseException:
        file.close()
        raise
    return file


def names_file(path: Path, fd: int) -> bool:
    """Return whether a name is still that of an open file."""
    try:
        named, opened = path.lstat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)
