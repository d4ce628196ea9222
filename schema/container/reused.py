"""`ReusedFile`: an existing data file whose blobs a new bundle refers to.

The data file stays locked until the new bundle has its name, so that `kvc gc` does not
remove the data file before that. A blob is checked before the bundle refers to it.
"""

import fcntl
import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from kvc.schema.closing import Closing
from kvc.schema.container.bundle_file import DataFileReader
from kvc.schema.container.lookup import open_folder
from kvc.schema.container.open_file import Folder, path_text, resolved, several
from kvc.schema.errors import CannotWrite, FileProblem
from kvc.schema.model import Blob, DataFile
from kvc.schema.uses import is_plain_name


class ReusedFile(Closing):
    """An open and locked data file."""

    def __init__(self, path: Path) -> None:
        """Open and lock a data file; wait for a writer of the file to finish.

        Args:
            path: path of the file, links followed.

        Raises:
            FileProblem: the file cannot be read, or was removed during the wait.
            FormatError: the file is damaged, or is not a data file.
        """
        file = open_locked(path)
        if file is None:
            reason = "it was removed or replaced while it was about to be used"
            raise FileProblem(path=str(path), reason=reason)
        self._file = file
        self._index = {(one.digest, one.nbytes): i for i, one in enumerate(file.blobs)}

    @property
    def entry(self) -> DataFile:
        """Return the entry that a program has for this file: its name and digest."""
        return DataFile(Path(self._file.path).name, self._file.digest)

    @property
    def path(self) -> str:
        """Return the path of the file."""
        return self._file.path

    @property
    def sizes(self) -> frozenset[int]:
        """Return the sizes of the file's blobs, in bytes."""
        return frozenset(nbytes for _, nbytes in self._index)

    def find(self, blob: Blob) -> Blob | None:
        """Return the blob in this file with the content of `blob`; None if none.

        Raises:
            FormatError: the blob is damaged in this file.
        """
        i = self._index.get((blob.digest, blob.nbytes))
        if i is None:
            return None
        found = self._file.blobs[i]
        self._file.check_blob(found, self._file.layout.padding[i], f"blob {i}")
        return found

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def open_reused(
    stack: ExitStack, paths: Folder | Iterable[Folder], bundle: str
) -> list[ReusedFile]:
    """Open and lock data files until `stack` is closed; open a repeated path only once.

    Raises:
        CannotWrite: two of the files have the same name, which a bundle cannot tell
            apart, or a name is one that a data file cannot have.
        FileProblem, FormatError: a file cannot be read.
    """
    reused: dict[bytes, ReusedFile] = {}
    names: set[str] = set()
    for path in dict.fromkeys(map(resolved, several(paths))):
        file = stack.enter_context(ReusedFile(path))
        if file.entry.digest in reused:
            continue
        name = file.entry.name
        if name in names or not is_plain_name(name):
            reason = f"a bundle cannot refer to {path}: its name is taken, or not plain"
            raise CannotWrite(path=bundle, reason=reason)
        names.add(name)
        reused[file.entry.digest] = file
    return list(reused.values())


def check_reuse(paths: Folder | Iterable[Folder], bundle: Folder) -> None:
    """Check that a new bundle can reuse data files, before other work is done.

    Raises:
        The errors of `open_reused`.
    """
    with ExitStack() as stack:
        open_reused(stack, paths, path_text(bundle))


def open_locked(path: Path) -> DataFileReader | None:
    """Open a data file, and lock it for reading until it is closed.

    Returns:
        The open file; None if the file was removed or replaced during the wait for
        the lock.

    Raises:
        FileProblem: the file cannot be read.
        FormatError: the file is damaged, or is not a data file.
    """
    with open_folder(path.parent) as folder:
        file = DataFileReader(path, within=folder)
    try:
        with suppress(OSError):  # where files cannot be locked, gc removes none
            fcntl.flock(file.fd, fcntl.LOCK_SH)
        if names_file(path, file.fd):
            return file
    except OSError as error:
        file.close()
        raise FileProblem(path=str(path), reason=str(error)) from error
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def names_file(path: str | Path, fd: int, folder: int | None = None) -> bool:
    """Tell whether `path` leads to the open file `fd`.

    The path is relative to the descriptor `folder`, unless `folder` is None.

    Raises:
        OSError: the system does not report the file's status.
    """
    try:
        named = os.stat(path, dir_fd=folder, follow_symlinks=False)
        opened = os.fstat(fd)
    except FileNotFoundError:
        return False
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)
