"""Find the data files of a bundle, by name and digest.

In: a program's entry for a data file, and folders. Out: the open file. The file is
opened by its name relative to the folder's descriptor, and links are not followed. A
file that has the right name but another digest is skipped; an error reports the file if
no folder has the right one.

A data file that holds only packed data (copies of plain data in a faster form) is not
required: the bundle opens without it, and a request for one of its blobs raises an
error that names the missing file.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Final

from kvc.schema.container.bundle_file import DataFileReader, SealedFile
from kvc.schema.container.open_file import Folder, path_text, resolved, several
from kvc.schema.errors import (
    DataFileMismatch,
    DataFileMissing,
    FileProblem,
    listing,
    reason_of,
)
from kvc.schema.model import DataFile, Program
from kvc.schema.uses import is_packed


class AbsentFile(SealedFile):
    """A placeholder for a data file that was not found."""

    def __init__(self, error: DataFileMissing) -> None:
        """Store the error of the failed search; requests for blobs raise this error."""
        self.path = error.name
        self.fd = -1
        self.size = 0
        self._error = error

    def pread_into(self, offset: int, view: memoryview) -> None:
        """Report that the file is missing.

        Raises:
            DataFileMissing: always.
        """
        raise copy(self._error)

    def check_zeros(self, start: int, end: int) -> None:
        """Report that the file is missing; raise the error of `pread_into`."""
        raise copy(self._error)

    def check_unchanged(self) -> None:
        """Do nothing, since a missing file does not change."""


def is_spare(program: Program, number: int) -> bool:
    """Tell whether a data file holds only packed data of a program."""
    return all(
        program.blobs[named.blob].file != number
        for named in program.names
        if not is_packed(named)
    )


_FOLDER: Final = os.O_DIRECTORY | os.O_CLOEXEC
# Enough to open files in a folder; no permission to list the folder is needed.
_BENEATH: Final = getattr(os, "O_PATH", os.O_RDONLY)


def search_path(bundle: str, folders: Folder | Iterable[Folder]) -> tuple[str, ...]:
    """Return the folders to search: the bundle's own folder, then `folders`."""
    return tuple(dict.fromkeys([str(resolved(bundle).parent), *several(folders)]))


def find_data_file(
    file: DataFile, bundle: str, folders: Sequence[str]
) -> DataFileReader:
    """Open the first data file that has the name and digest of a program's entry.

    Args:
        file: the entry. `verify_program` has checked that its name is not a path.
        bundle: path of the bundle, for messages.
        folders: the folders to search, in this order.

    Raises:
        DataFileMissing: no folder has a file of this name.
        DataFileMismatch: the files of this name have other contents.
        FileProblem: a folder or file cannot be opened, or is not a regular file.
        FormatError: a file of this name is damaged.
    """
    wrong: dict[str, str] = {}  # folder to digest
    for folder in folders:
        found = _open_in(folder, file.name)
        if found is not None and found.digest == file.digest:
            return found
        if found is not None:
            found.close()
            wrong[folder] = found.digest.hex()
    if not wrong:
        raise DataFileMissing(
            path=bundle,
            name=file.name,
            expected=file.digest.hex(),
            folders=listing(folders),
        )
    raise DataFileMismatch(
        path=bundle,
        name=file.name,
        expected=file.digest.hex(),
        found=listing(list(wrong.values())),
        folders=listing(list(wrong)),
    )


def _open_in(folder: str, name: str) -> DataFileReader | None:
    """Open a data file; return None if the folder has no file of this name."""
    with open_folder(folder) as fd:
        try:
            return DataFileReader(Path(folder) / name, within=fd)
        except FileProblem as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise


@contextmanager
def open_folder(folder: Folder, listed: bool = False) -> Iterator[int]:
    """Open a folder and yield its descriptor.

    Args:
        folder: path of the folder.
        listed: whether the caller lists the folder; this needs read permission.

    Raises:
        FileProblem: the folder does not exist, or the system refuses.
    """
    path = path_text(folder)
    try:
        fd = os.open(path, _FOLDER | (os.O_RDONLY if listed else _BENEATH))
    except NotADirectoryError as error:
        reason = "it is not a folder; give the one that holds bundles and data files"
        raise FileProblem(path=path, reason=reason) from error
    except (OSError, ValueError) as error:
        raise FileProblem(path=path, reason=reason_of(error)) from error
    try:
        yield fd
    finally:
        os.close(fd)
