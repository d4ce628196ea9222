"""Open bundles and data files: header, blobs, tail.

The header holds the file's length and the digest of the tail (a bundle's program or a
data file's index). The tail holds the digests of the blobs. Opening a file reads only
the header and the tail. `StoredBlobs` reads blobs, and opens a bundle's data files.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Self

from kvc.schema.codec import LateBlocks, decode, decode_index
from kvc.schema.container.header import (
    BUNDLE,
    DATA,
    HEADER_NBYTES,
    FileKind,
    Header,
    PaddingLayout,
    check_layout,
    parse_header,
)
from kvc.schema.container.open_file import OpenFile
from kvc.schema.digests import Fill, streamed_digest
from kvc.schema.errors import DigestMismatch
from kvc.schema.identity import identity
from kvc.schema.model import Blob, Program
from kvc.schema.verify import verify_index, verify_outline, verify_program


class SealedFile(OpenFile):
    """An open file that begins with a header."""

    def read_header(self, kind: FileKind) -> Header:
        """Read and check the header of the file.

        Raises:
            FormatError: the header is damaged, or the file is of another kind.
        """
        head = self.pread(0, min(HEADER_NBYTES, self.size))
        return parse_header(head, self.size, self.path, kind)

    def read_tail(self, header: Header, kind: FileKind) -> bytes:
        """Return the bytes of the file's tail.

        Raises:
            DigestMismatch: the tail is damaged.
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
        """Check the digest of a blob in this file, and the padding before the blob.

        The blob is read in small pieces. The arguments and errors are those of
        `check_digest`.
        """
        digest = streamed_digest(blob.nbytes, self.filler(blob))
        self.check_digest(blob, padding, what, digest)

    def check_digest(self, blob: Blob, padding: int, what: str, digest: bytes) -> None:
        """Check that a blob has its digest, and that the padding before it is zero.

        Args:
            blob: a blob of this file.
            padding: the offset at which the padding before the blob begins.
            what: the name of the blob in messages.
            digest: the digest of the bytes that were read.

        Raises:
            DigestMismatch: the blob is damaged.
            BadStructure: the padding is not zero.
            FileProblem, Truncated: the padding cannot be read.
        """
        self.check_zeros(padding, blob.offset)
        if digest != blob.digest:
            raise DigestMismatch(
                path=self.path, what=what, nbytes=blob.nbytes, offset=blob.offset
            )

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the file if the `with` body fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise


class DataFileReader(SealedFile):
    """An open data file.

    Attributes:
        header: the decoded header.
        blobs: the blobs in the file's index, by ascending offset; `Blob.file` is 0.
        layout: where the zero padding lies in the file.
    """

    def __init__(self, path: str | os.PathLike[str], within: int | None = None) -> None:
        """Open a data file and check its index; the arguments are those of `OpenFile`.

        Raises:
            FileProblem: the system refuses, or the path is not a regular file.
            FormatError: the file is not a data file, or is damaged.
        """
        super().__init__(path, within)
        with self.closed_on_error():
            self.header: Header = self.read_header(DATA)
            blobs = decode_index(self.read_tail(self.header, DATA), self.path)
            verify_index(blobs, self.path)
            self.blobs: tuple[Blob, ...] = blobs
            self.layout: PaddingLayout = check_layout(
                self.blobs, self.header, DATA, self.path
            )
            self.check_zeros(self.layout.tail_padding, self.header.tail_offset)

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the index, which bundles store to identify the file."""
        return self.header.tail_digest


class BundleFile(SealedFile):
    """An open bundle.

    Attributes:
        header: the decoded header.
        program: the decoded program, which has been verified.
        layout: where the zero padding lies in the file.
    """

    def __init__(self, path: str | os.PathLike[str], thorough: bool = False) -> None:
        """Open a bundle and check its program; `verify_program` explains `thorough`.

        Raises:
            FileProblem: the system refuses, or the path is not a regular file.
            FormatError: the file is not a bundle, or is damaged.
        """
        super().__init__(path)
        with self.closed_on_error():
            self.header = self.read_header(BUNDLE)
            self.program: Program = self._read_program(thorough)
            self._whole = self.program
            self.layout: PaddingLayout = check_layout(
                self.program.blobs, self.header, BUNDLE, self.path
            )
            self.check_zeros(self.layout.tail_padding, self.header.tail_offset)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a bundle; raise the errors of the constructor."""
        return cls(path)

    def choose(self, body: Program) -> None:
        """Replace the program by `body`, the program with only one of its recipes."""
        self.program = body

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the encoded program, in hexadecimal.

        It covers all content of the bundle, since the program has the digest of each
        blob.
        """
        return self.header.tail_digest.hex()

    @cached_property
    def identity(self) -> str:
        """Return the program's identity, which does not depend on where blobs lie.

        The identity covers the methods of all recipes; see `schema/identity.py`. It is
        computed on first use.
        """
        return identity(self._whole)

    def _read_program(self, thorough: bool) -> Program:
        late = None if thorough else LateBlocks()
        program = decode(self.read_tail(self.header, BUNDLE), self.path, late)
        if late is not None and late.used:
            late.check = partial(verify_program, program, self.path)
            verify_outline(program, self.path)
        else:
            verify_program(program, self.path, thorough)
        return program
