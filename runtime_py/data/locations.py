"""The place of a blob in memory, and the interface of the two ways to put it there.

In: a blob. Out: a `ByteRange`. A `ByteRange` keeps its memory alive, and so does every
array over it. So memory is never freed explicitly: it lives until the last of these.
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
        owner: the memory, which lives until its last reference.
        offset: the offset of the run in it, in bytes.
    """

    owner: mmap.mmap | Array
    offset: int

    def array(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Return an array over the run, which keeps the memory alive."""
        # numpy holds no buffer export of the map, so a map must never be closed
        # explicitly.
        return np.ndarray(shape, dtype.numpy, self.owner, self.offset)

    def view(self, nbytes: int) -> memoryview:
        """Return the run as writable bytes."""
        run = np.ndarray((nbytes,), np.uint8, self.owner, self.offset)
        return memoryview(run)  # type: ignore[arg-type]  # unknown to numpy's stubs

    @property
    def address(self) -> int:
        """Return the address of the run."""
        return address_of(np.ndarray((0,), np.uint8, self.owner, self.offset))


class BlobMemory(Protocol):
    """Puts blobs into memory and takes them out; used from many threads.

    For one blob, calls of `take` and `give_back` alternate.

    Attributes:
        shown: the files that are mapped rather than copied into memory.
    """

    shown: list[OpenFile]

    def take(self, blob: int) -> ByteRange:
        """Put a verified blob into memory.

        Raises:
            FileChanged: its file has changed since it was opened.
            FormatError: its bytes are damaged.
            FileProblem: its bytes cannot be read.
            OutOfMemory: there is not enough memory.
        """

    def give_back(self, blob: int) -> None:
        """Free the memory; the `ByteRange` of `take` has been dropped."""

    def find(self, blob: int) -> ByteRange | None:
        """Return the place of a blob that is in memory without users, if it is."""

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many resident bytes have been freed; None if unknown."""

    def close(self) -> None:
        """Release all memory; arrays that are still alive keep theirs."""
