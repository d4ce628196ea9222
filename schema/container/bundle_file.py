"""`BundleFile`: an open bundle whose program has passed every check.

Opening reads only the header and the program. Blobs and data files are read by
`StoredBlobs`.
"""

import os
from typing import Self

from kvc.schema.codec import decode
from kvc.schema.container.header import BUNDLE
from kvc.schema.container.layout import Layout, check_layout
from kvc.schema.container.sealed import SealedFile
from kvc.schema.model import Program
from kvc.schema.verify import verify_program


class BundleFile(SealedFile):
    """An open bundle.

    Attributes:
        header: what the first bytes say.
        program: decoded and verified.
        layout: where zero padding lies.
    """

    def __init__(self, path: str | os.PathLike[str], thorough: bool = False) -> None:
        """Open a bundle and check its program; `thorough` as in `verify_program`.

        Raises:
            FileProblem: the system refuses, or it is no plain file.
            FormatError: the bytes are wrong.
        """
        super().__init__(path)
        with self.closed_on_error():
            self.header = self.read_header(BUNDLE)
            self.program: Program = self._read_program(thorough)
            blobs = self.program.blobs
            self.layout: Layout = check_layout(blobs, self.header, BUNDLE, self.path)
            self.check_zeros(self.layout.tail_padding, self.header.tail_offset)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a bundle; raises as the constructor."""
        return cls(path)

    @property
    def digest(self) -> str:
        """Return the program's SHA-256 in hexadecimal: the identity of the bundle."""
        return self.header.tail_digest.hex()

    def _read_program(self, thorough: bool) -> Program:
        program = decode(self.read_tail(self.header, BUNDLE), self.path)
        verify_program(program, self.path, thorough)
        return program
