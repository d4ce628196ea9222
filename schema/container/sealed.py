"""`SealedFile`: the common part of bundles and data files: header, blobs, tail.

The header has the file's length and the digest of the tail (a bundle's program or a
data file's index); the tail has the digests of the blobs.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from kvc.schema.container.header import HEADER_NBYTES, Header, Kind, parse_header
from kvc.schema.container.opened import OpenFile
from kvc.schema.digests import Fill, streamed_digest
from kvc.schema.errors import DigestMismatch
from kvc.schema.model import Blob


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

    def filler(self, blob: Blob) -> Fill:
        """Return a function that reads parts of a blob of this file."""

        def fill(start: int, view: memoryview) -> None:
            self.pread_into(blob.offset + start, view)

        return fill

    def check_blob(self, blob: Blob, padding: int, what: str) -> None:
        """Check a blob of this file, in little memory, as `check_digest`."""
        digest = streamed_digest(blob.nbytes, self.filler(blob))
        self.check_digest(blob, padding, what, digest)

    def check_digest(self, blob: Blob, padding: int, what: str, digest: bytes) -> None:
        """Check the digest of what was read of a blob, and the padding before it.

        Args:
            blob: of this file.
            padding: where what comes before the blob ends.
            what: what to call the blob.
            digest: of the bytes that were read.

        Raises:
            DigestMismatch: its bytes are damaged.
            BadStructure: the padding is not zero.
            FileProblem, Truncated: they cannot be read.
        """
        self.check_zeros(padding, blob.offset)
        if digest != blob.digest:
            raise DigestMismatch(
                path=self.path, what=what, nbytes=blob.nbytes, offset=blob.offset
            )

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the file if what is done with it fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise
