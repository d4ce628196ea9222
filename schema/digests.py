"""The digest of a blob: a function of its bytes alone.

Up to 1 MiB it is the SHA-256 of the bytes. Beyond, it is the SHA-256 of the joined
SHA-256 digests of each 1 MiB (the last one may be shorter), so that two threads can
share the work: hashlib releases the GIL.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

LEAF_NBYTES: Final = 1 << 20
DIGEST_NBYTES: Final = 32
# Below this, starting a thread costs more than it saves.
_THREADED_NBYTES: Final = 8 << 20

Bytes = bytes | bytearray | memoryview


def blob_digest(content: Bytes) -> bytes:
    """Return the digest of a blob, 32 bytes."""
    view = memoryview(content).cast("B")
    if view.nbytes <= LEAF_NBYTES:
        return hashlib.sha256(view).digest()
    starts = range(0, view.nbytes, LEAF_NBYTES)
    leaves = [view[start : start + LEAF_NBYTES] for start in starts]
    if view.nbytes < _THREADED_NBYTES:
        digests = [_leaf(leaf) for leaf in leaves]
    else:
        with ThreadPoolExecutor(2, thread_name_prefix="kvc-digest") as pool:
            digests = list(pool.map(_leaf, leaves))
    return hashlib.sha256(b"".join(digests)).digest()


def _leaf(part: memoryview) -> bytes:
    return hashlib.sha256(part).digest()


class BlobHasher:
    """The digest of a blob that comes in pieces."""

    def __init__(self) -> None:
        self._leaf = hashlib.sha256()
        self._room = LEAF_NBYTES
        self._leaves: list[bytes] = []

    def update(self, content: Bytes) -> None:
        """Take the next bytes."""
        rest = memoryview(content).cast("B")
        while rest.nbytes:
            if not self._room:
                self._leaves.append(self._leaf.digest())
                self._leaf, self._room = hashlib.sha256(), LEAF_NBYTES
            part, rest = rest[: self._room], rest[self._room :]
            self._leaf.update(part)
            self._room -= part.nbytes

    def digest(self) -> bytes:
        """Return the digest of the bytes so far."""
        if not self._leaves:
            return self._leaf.digest()
        return hashlib.sha256(b"".join([*self._leaves, self._leaf.digest()])).digest()
