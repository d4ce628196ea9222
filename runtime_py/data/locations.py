"""Where a blob lies in memory: the interface of the two ways to put it there.

A `ByteRange` keeps its memory alive, and so does every array over it. So memory is
never freed explicitly: it goes when the last of these goes.
"""

import mmap
from typing import Protocol

import numpy as np

from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.container import OpenFile
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen


@frozen
class ByteRange:
    """A run of bytes in memory.

    Attributes:
        owner: the memory; it goes with the last reference to it.
        offset: of the run in it, in bytes.
    """

    owner: mmap.mmap | Array
    offset: int

    def array(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Return an array over the run, which keeps the memory alive."""
        # numpy takes no export of a map, so a map must never be closed explicitly.
        return np.ndarray(shape, dtype.numpy, self.owner, self.offset)

    def view(self, nbytes: int) -> memoryview:
        """Return the run as bytes that can be written."""
        run = np.ndarray((nbytes,), np.uint8, self.owner, self.offset)
        return memoryview(run)  # type: ignore[arg-type]  # unknown to numpy's stubs

    @property
    def address(self) -> int:
        """Return where the run begins."""
        return address_of(np.ndarray((0,), np.uint8, self.owner, self.offset))


class BlobMemory(Protocol):
    """Puts blobs into memory and takes them out; used from many threads.

    For one blob, `take` and `give_back` take turns.

    Attributes:
        shown: the files whose content memory shows, rather than holding it.
    """

    shown: list[OpenFile]

    def take(self, blob: int) -> ByteRange:
        """Put a checked blob into memory.

        Raises:
            FileChanged: its file is not the one that was opened.
            FormatError: its bytes are damaged.
            FileProblem: they cannot be read.
            OutOfMemory: the system gives none.
        """

    def give_back(self, blob: int) -> None:
        """Give the memory back; the `ByteRange` of `take` has been dropped."""

    def find(self, blob: int) -> ByteRange | None:
        """Return where a blob that nobody has taken lies all the same, if it does."""

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many resident bytes have gone back; None where nobody can say."""

    def close(self) -> None:
        """Let go of all memory; arrays that are still alive keep theirs."""
