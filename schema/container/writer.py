"""`BundleWriter`: write a bundle so that it is there whole or not at all.

Blobs are appended as they are made, to the temporary file of an `AtomicFile`;
`finish` adds program and header and gives the file its name.
"""

import hashlib
import os
from typing import Self

from kvc.schema.codec import encode
from kvc.schema.container.atomic import AtomicFile
from kvc.schema.container.header import HEADER_NBYTES, Header, pack_header
from kvc.schema.container.layout import PROGRAM_ALIGN, align_up, check_layout
from kvc.schema.model import Program
from kvc.schema.version import FORMAT_VERSION


class BundleWriter(AtomicFile):
    """Writes one bundle; use it in a `with` statement, which makes the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at `path`; nothing is made yet.

        Raises:
            OutputProblem: the folder is missing, or `path` is no file.
        """
        super().__init__(path)
        self._end = HEADER_NBYTES

    def __enter__(self) -> Self:
        """Make a temporary file beside the target, with room for the header.

        Raises:
            OutputProblem: the folder refuses.
        """
        super().__enter__()
        try:
            self.write(bytes(HEADER_NBYTES))
        except BaseException:  # Ctrl-C too: `__exit__` is not called for it here
            self.discard()
            raise
        return self

    def append(self, content: bytes | bytearray | memoryview, align: int) -> int:
        """Write a blob at the next multiple of `align`, and return its offset.

        Raises:
            OutputProblem: the system refuses, for example because the disk is full.
        """
        start = align_up(self._end, align)
        self.write(bytes(start - self._end))
        self.write(content)
        self._end = start + memoryview(content).nbytes
        return start

    def finish(self, program: Program) -> None:
        """Write program and header, make them durable, and name the file.

        Raises:
            OutputProblem: the system refuses; the old file is untouched.
            OutputUnsynced: the new file is there, but may not outlive a crash.
            FormatError: the program does not describe what was written: a bug.
        """
        raw = encode(program)
        start = align_up(self._end, PROGRAM_ALIGN)
        header = Header(
            version=FORMAT_VERSION,
            flags=0,
            file_nbytes=start + len(raw),
            program_offset=start,
            program_nbytes=len(raw),
            program_digest=hashlib.sha256(raw).digest(),
        )
        check_layout(program, header, self.path)
        self.append(raw, PROGRAM_ALIGN)
        self.commit(pack_header(header))
