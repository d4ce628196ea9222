"""`AbsentFile`: stands for a data file that is missing and not required.

A data file with nothing but packed data, a copy of plain data in a faster form, is not
required: the bundle opens without it, and a request for one of its blobs raises an
error that names the missing file.
"""

from copy import copy

from kvc.schema.container.sealed import SealedFile
from kvc.schema.errors import DataFileMissing
from kvc.schema.model import Program
from kvc.schema.uses import is_packed


class AbsentFile(SealedFile):
    """Stands for a data file; it has no bytes."""

    def __init__(self, error: DataFileMissing) -> None:
        """Keep the error that a search has ended with."""
        self.path = error.name
        self.fd = -1
        self.size = 0
        self._error = error

    def pread_into(self, offset: int, view: memoryview) -> None:
        """Say that the file is missing.

        Raises:
            DataFileMissing: always.
        """
        raise copy(self._error)

    def check_zeros(self, start: int, end: int) -> None:
        """Say that the file is missing, as `pread_into`."""
        raise copy(self._error)

    def check_unchanged(self) -> None:
        """Check nothing: what is not there stays as it is."""


def is_spare(program: Program, number: int) -> bool:
    """Return whether a data file holds nothing but packed data of a program."""
    return all(
        program.blobs[named.blob].file != number
        for named in program.names
        if not is_packed(named)
    )
