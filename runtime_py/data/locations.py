"""The place of a blob in memory, and the interface of the two ways to put it there.

In: a blob. Out: a `ByteRange`. Memory is never freed explicitly: it lives as long as a
`ByteRange` of it, or an array over it, is alive.
"""

import mmap
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen


@frozen
class ByteRange:
    """A run of bytes in memory.

    Attributes:
        owner: the object that owns the memory; the memory lives as long as the object.
        offset: the offset of the run in the owner's memory, in bytes.
    """

    owner: mmap.mmap | Array
    offset: int

    def array(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Return an array over the run, which keeps the memory alive."""
        # numpy holds no buffer export of the map, so a map must never be closed
        # explicitly.
        return np.ndarray(shape, dtype.numpy, self.owner, self.offset)

    def view(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` bytes of the run, writable."""
        run = np.ndarray((nbytes,), np.uint8, self.owner, self.offset)
        return memoryview(run)  # type: ignore[arg-type]  # unknown to numpy's stubs

    @property
    def address(self) -> int:
        """Return the address of the run."""
        return address_of(np.ndarray((0,), np.uint8, self.owner, self.offset))


class Changing(Protocol):
    """A file that may change."""

    def check_unchanged(self) -> None:
        """Check that the file has not changed since it was opened.

        Raises:
            FileChanged: it has changed.
            FileProblem: the system does not report its status.
        """


class BlobMemory(Protocol):
    """Reads blobs into memory and frees the memory; safe to use from many threads.

    For one blob, calls of `take` and `give_back` alternate.
    """

    @property
    def shown(self) -> Sequence[Changing]:
        """Return the mapped files that blobs in use lie in."""

    def take(self, blob: int) -> ByteRange:
        """Read a blob into memory, and verify it.

        Raises:
            FileChanged: the blob's file has changed since the file was opened.
            FormatError: the blob's bytes are damaged.
            FileProblem: the blob's bytes cannot be read.
            OutOfMemory: there is not enough memory.
        """

    def check(self, blob: int) -> None:
        """Check that a blob's mapped file has not changed since the blob was taken.

        Raises:
            FileChanged: it has changed.
            FileProblem: the system does not report its status.
        """

    def give_back(self, blob: int) -> None:
        """Free a blob's memory; the caller has dropped the `ByteRange` of `take`."""

    def find(self, blob: int) -> ByteRange | None:
        """Return the place of a blob that has memory even without `take`, or None."""

    def sharers(self, blob: int) -> int:
        """Return how many other programs of this process have a blob in use."""

    def freed_nbytes(self, blob: int) -> int | None:
        """Return how many resident bytes of a blob were freed; None if unknown."""

    def close(self) -> None:
        """Release all memory that no array uses."""
