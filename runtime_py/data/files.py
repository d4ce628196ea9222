"""`BundledFiles`: the files in a bundle, such as its tokenizer."""

import numpy as np

from kvc.runtime.data.buffers import NamedBuffers
from kvc.runtime.named import Named
from kvc.schema.model import Program
from kvc.schema.uses import FILE, FILES


class BundledFiles(Named[bytes]):
    """`program.files`: name to bytes, read and checked each time they are asked for.

    Asking for one raises `FileChanged`, `FormatError` or `FileProblem` where its bytes
    cannot be had any more, `Closed` or `Forked` where the program cannot be used.
    """

    def __init__(self, program: Program, buffers: NamedBuffers) -> None:
        self._buffers = buffers
        names = enumerate(program.names)
        files = ((n.name.removeprefix(FILES), i) for i, n in names if n.format == FILE)
        super().__init__("bundled file", files)

    def _of(self, number: int) -> bytes:
        with self._buffers.handle(number) as buffer:
            content = np.empty(buffer.nbytes, np.uint8)
            buffer.read_into(content)
        return content.tobytes()
