"""`DataFileReader`: an open data file whose index has passed every check.

A data file holds blobs that bundles refer to, and an index of them at its end. Opening
reads only the header and the index.
"""

import os

from kvc.schema.codec import decode_index
from kvc.schema.container.header import DATA, Header
from kvc.schema.container.layout import Layout, check_layout
from kvc.schema.container.sealed import SealedFile
from kvc.schema.model import Blob
from kvc.schema.verify import verify_index


class DataFileReader(SealedFile):
    """An open data file.

    Attributes:
        header: what the first bytes say.
        blobs: its index, by ascending offset; `file` is 0 in each.
        layout: where zero padding lies.
    """

    def __init__(self, path: str | os.PathLike[str], within: int | None = None) -> None:
        """Open a data file and check its index; arguments as of `OpenFile`.

        Raises:
            FileProblem: the system refuses, or it is no plain file.
            FormatError: the bytes are wrong.
        """
        super().__init__(path, within)
        with self.closed_on_error():
            self.header: Header = self.read_header(DATA)
            self.blobs: tuple[Blob, ...] = self._read_index()
            self.layout: Layout = check_layout(self.blobs, self.header, DATA, self.path)
            self.check_zeros(self.layout.tail_padding, self.header.tail_offset)

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the index, by which bundles name the file."""
        return self.header.tail_digest

    def _read_index(self) -> tuple[Blob, ...]:
        blobs = decode_index(self.read_tail(self.header, DATA), self.path)
        verify_index(blobs, self.path)
        return blobs
