"""`SealedFile`: what bundles and data files have in common: a header and a tail.

The header says how long the file is and has the digest of the tail, the program of a
bundle or the index of a data file; the tail has the digests of the blobs.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from kvc.schema.container.header import HEADER_NBYTES, Header, Kind, parse_header
from kvc.schema.container.opened import OpenFile
from kvc.schema.errors import DigestMismatch


class SealedFile(OpenFile):
    """An open file that begins with a header."""

    def read_header(self, kind: Kind) -> Header:
        """Return the checked header.

        Raises:
            FormatError: it is damaged, or the file is of another kind.
        """
        head = self.pread(0, min(HEADER_NBYTES, self.size))
        return parse_header(head, self.size, self.path, kind)

    def read_tail(self, header: Header, kind: Kind) -> bytes:
        """Return the bytes that end the file.

        Raises:
            DigestMismatch: they are damaged.
        """
        raw = self.pread(header.tail_offset, header.tail_nbytes)
        if hashlib.sha256(raw).digest() != header.tail_digest:
            raise DigestMismatch(
                path=self.path,
                what=f"the {kind.tail}",
                nbytes=header.tail_nbytes,
                offset=header.tail_offset,
            )
        return raw

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the file if what is done with it fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise
