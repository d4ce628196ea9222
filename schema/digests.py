"""The digest of a blob: a function of its bytes alone.

In: bytes, or a function that fetches them. The digest of a blob of up to 1 MiB is the
SHA-256 of its bytes. A larger blob is cut into leaves of 1 MiB each (the last leaf may
be shorter); its digest is the SHA-256 of `kvc-tree` and the concatenated SHA-256
digests of the leaves. Two threads can thus share the work, since hashlib and reading
release the GIL. The second thread lives only while a large blob is hashed. It is
possible to construct a small blob that has the digest of a large blob, so only digest
and size together identify a content.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from kvc.schema.two_threads import share

LEAF_NBYTES: Final = 1 << 20
DIGEST_NBYTES: Final = 32
TREE: Final = b"kvc-tree"  # hashed before the leaves
# Below this, starting a thread costs more than it saves.
_THREADED_NBYTES: Final = 4 << 20

Bytes = bytes | bytearray | memoryview
# Fills memory with the bytes that begin at an offset in the blob.
Fill = Callable[[int, memoryview], None]
# Returns a part of the blob, by its start and size.
_Fetch = Callable[[int, int], memoryview]


def blob_digest(content: Bytes) -> bytes:
    """Return the digest of a blob, 32 bytes."""
    view = memoryview(content).cast("B")
    return _digest(view.nbytes, lambda: lambda start, size: view[start : start + size])


def streamed_digest(nbytes: int, fill: Fill) -> bytes:
    """Compute the digest of a blob that `fill` reads; use 1 MiB of memory per thread.

    Raises:
        BaseException: any exception raised by `fill`, which may run in two threads at
            once.
    """

    def start_thread() -> _Fetch:
        buffer = _aligned(min(nbytes, LEAF_NBYTES))

        def fetch(start: int, size: int) -> memoryview:
            fill(start, buffer[:size])
            return buffer[:size]

        return fetch

    return _digest(nbytes, start_thread)


def _aligned(nbytes: int) -> memoryview:
    """Return `nbytes` bytes of memory at an address that is a multiple of 64.

    Python's own memory starts 16 bytes after the start of a page; reading a file to
    such memory takes three times as long (AMD EPYC, measured 2026-11-23).
    """
    array = np.empty(nbytes + 64, np.uint8)
    start = -array.ctypes.data % 64
    return memoryview(array[start : start + nbytes])  # type: ignore[arg-type]


def filled_digest(target: memoryview, fill: Fill) -> bytes:
    """Fill `target` with the bytes of a blob, and return the digest of these bytes.

    Raises:
        BaseException: any exception raised by `fill`, which may run in two threads at
            once.
    """

    def fetch(start: int, size: int) -> memoryview:
        part = target[start : start + size]
        fill(start, part)
        return part

    return _digest(target.nbytes, lambda: fetch)


def _digest(nbytes: int, start_thread: Callable[[], _Fetch]) -> bytes:
    """Return the digest of a blob; hash its leaves in up to two threads.

    Each thread calls `start_thread` once, for the function with which it reads bytes.
    """
    if nbytes <= LEAF_NBYTES:
        return hashlib.sha256(start_thread()(0, nbytes)).digest()
    starts = range(0, nbytes, LEAF_NBYTES)
    leaves = [b""] * len(starts)

    def work(todo: Iterator[tuple[int, int]]) -> None:
        fetch = start_thread()
        for index, start in todo:
            part = fetch(start, min(LEAF_NBYTES, nbytes - start))
            leaves[index] = hashlib.sha256(part).digest()

    share(iter(enumerate(starts)), work, twice=nbytes >= _THREADED_NBYTES)
    return hashlib.sha256(TREE + b"".join(leaves)).digest()


class BlobHasher:
    """Hasher that computes the digest of a blob from chunks of the blob."""

    def __init__(self) -> None:
        self._leaf = hashlib.sha256()
        self._room = LEAF_NBYTES
        self._leaves: list[bytes] = []

    def update(self, content: Bytes) -> None:
        """Hash the next bytes of the blob."""
        rest = memoryview(content).cast("B")
        while rest.nbytes:
            if not self._room:
                self._leaves.append(self._leaf.digest())
                self._leaf, self._room = hashlib.sha256(), LEAF_NBYTES
            part, rest = rest[: self._room], rest[self._room :]
            self._leaf.update(part)
            self._room -= part.nbytes

    def digest(self) -> bytes:
        """Return the digest of all bytes that have been passed to `update`."""
        if not self._leaves:
            return self._leaf.digest()
        leaves = b"".join([*self._leaves, self._leaf.digest()])
        return hashlib.sha256(TREE + leaves).digest()
