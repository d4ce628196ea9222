"""`BundledFiles`: the files in a bundle, such as its tokenizer."""

from collections.abc import Iterator, Mapping

import numpy as np

from kvc.runtime.data.buffers import NamedBuffers
from kvc.schema.errors import UnknownName
from kvc.schema.model import Program
from kvc.schema.uses import FILE, FILES


class BundledFiles(Mapping[str, bytes]):
    """`program.files`: name to bytes, read and checked each time they are asked for."""

    def __init__(self, program: Program, buffers: NamedBuffers) -> None:
        self._buffers = buffers
        self._ids = {
            named.name.removeprefix(FILES): i
            for i, named in enumerate(program.names)
            if named.format == FILE
        }

    def __getitem__(self, name: str) -> bytes:
        """Read a file.

        Raises:
            UnknownName: the bundle has no such file.
            FileChanged, FormatError, FileProblem: its bytes cannot be had any more.
            Closed, Forked: the program is closed, or belongs to another process.
        """
        if name not in self._ids:
            known, kind = tuple(self._ids), "file in the bundle"
            raise UnknownName(kind=kind, name=name, known=known)
        with self._buffers.handle(self._ids[name]) as buffer:
            content = np.empty(buffer.nbytes, np.uint8)
            buffer.read_into(content)
        return content.tobytes()

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
