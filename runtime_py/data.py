"""Named data: constants that are mapped when asked for, and can be given back.

In: an open bundle. Out: `FreeableBuffer`s, each a handle of its own over the shared
pages of a blob. A blob's digest is checked at its first touch, and again at the
first touch after its pages were given back. Pages go when the last handle does.
"""

import mmap
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from kvc.runtime.arrays import Array
from kvc.schema.container import BundleFile
from kvc.schema.errors import BufferFreed, Closed, UnknownName, listing
from kvc.schema.model import Blob, NamedData, Program


@dataclass(slots=True)
class _Residency:
    """What is known of a blob's pages; changes only under `lock`."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    handles: int = 0
    verified: bool = False


class MappedBlobs:
    """One private copy-on-write map of a bundle, with a count of handles per blob.

    Copy-on-write, since torch has no read-only tensors: a write by mistake would be a
    segmentation fault on a read-only map, and never reaches the file on this one.
    """

    def __init__(self, bundle: BundleFile, blobs: tuple[Blob, ...]) -> None:
        self._bundle = bundle
        self._blobs = blobs
        self._residency = tuple(_Residency() for _ in blobs)
        self._lock = threading.RLock()
        self._map: mmap.mmap | None = None
        # Runs once: at close, or when the last buffer and program are collected.
        self._closer = weakref.finalize(self, bundle.close)

    def acquire(self, blob: int) -> None:
        """Count one more handle."""
        with self._residency[blob].lock:
            self._residency[blob].handles += 1

    def release(self, blob: int) -> None:
        """Count one handle less; with the last one the pages go back."""
        residency = self._residency[blob]
        with residency.lock:
            residency.handles -= 1
            if residency.handles == 0 and residency.verified:
                residency.verified = False
                self._discard(self._blobs[blob])

    def touch(self, blob: int) -> mmap.mmap:
        """Return the map, after checking the blob if nothing has since it was freed.

        Raises:
            FileChanged: the file is not the one that was opened.
            DigestMismatch: the blob's bytes are damaged.
            Closed: the program has been closed.
        """
        residency, whole = self._residency[blob], self._mapped()
        with residency.lock:
            if not residency.verified:
                self._check(blob, whole)
                residency.verified = True
        return whole

    def close(self) -> None:
        """Close the file and let go of the map; arrays still alive keep the map."""
        with self._lock:
            self._map = None
            self._closer()

    def _mapped(self) -> mmap.mmap:
        with self._lock:
            if not self._closer.alive:
                raise Closed(kind="program")
            if self._map is None:
                self._bundle.check_unchanged()
                self._map = mmap.mmap(
                    self._bundle.fd, self._bundle.size, access=mmap.ACCESS_COPY
                )
            return self._map

    def _check(self, blob: int, whole: mmap.mmap) -> None:
        self._bundle.check_unchanged()
        entry = self._blobs[blob]
        with memoryview(whole) as view:
            content = view[entry.offset : entry.offset + entry.nbytes]
            self._bundle.check_blob(blob, content)

    def _discard(self, blob: Blob) -> None:
        """Give back the pages that lie whole inside the blob; the file keeps them."""
        start = -(-blob.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (blob.offset + blob.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and end > start and sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


class FreeableBuffer:
    """A handle on named data; may be used from many threads.

    Arrays that came from it stay valid after `free`: they read the file again.
    """

    def __init__(self, named: NamedData, blobs: MappedBlobs, blob: Blob) -> None:
        self._named = named
        self._blobs = blobs
        self._offset = blob.offset
        self._lock = threading.RLock()
        self._freed = False
        self.nbytes = blob.nbytes
        blobs.acquire(named.blob)

    @property
    def name(self) -> str:
        """Return the data's name."""
        return self._named.name

    @property
    def freed(self) -> bool:
        """Tell whether `free` has been called."""
        return self._freed

    def array(self) -> Array:
        """Return a read-only array of the declared dtype and shape, without a copy.

        Raises:
            BufferFreed: after `free`.
            DigestMismatch, FileChanged: the bytes are not those that were written.
            Closed: the program has been closed.
        """
        array = self.private_array()
        array.flags.writeable = False
        return array

    def private_array(self) -> Array:
        """Return the same array, writable as far as numpy and torch can see.

        For kernels, which must not write it. Raises as `array` does.
        """
        with self._lock:
            if self._freed:
                raise BufferFreed(name=self.name)
            whole = self._blobs.touch(self._named.blob)
        declared = self._named.type
        shape = declared.shape({})
        return np.ndarray(
            shape, declared.dtype.numpy, buffer=whole, offset=self._offset
        )

    def free(self) -> None:
        """Release the handle; doing so twice is safe."""
        with self._lock:
            if self._freed:
                return
            self._freed = True
        self._blobs.release(self._named.blob)

    def __enter__(self) -> "FreeableBuffer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.free()

    def __del__(self) -> None:
        # Also runs on a handle whose constructor failed.
        if not getattr(self, "_freed", True):
            self.free()

    def __repr__(self) -> str:
        state = "freed" if self._freed else str(self._named.type)
        return f"<FreeableBuffer {self.name!r}: {state}>"


class NamedBuffers(Mapping[str, FreeableBuffer]):
    """`program.data`: every name of the bundle; each request is a new handle."""

    def __init__(self, program: Program, blobs: MappedBlobs) -> None:
        self._program = program
        self._blobs = blobs
        self._ids = {named.name: i for i, named in enumerate(program.names)}

    def handle(self, name_id: int) -> FreeableBuffer:
        """Return a new handle by the data's id."""
        named = self._program.names[name_id]
        return FreeableBuffer(named, self._blobs, self._program.blobs[named.blob])

    def __getitem__(self, name: str) -> FreeableBuffer:
        """Return a new handle.

        Raises:
            UnknownName: the program has no such data.
        """
        if name not in self._ids:
            known = listing(list(self._ids)[:8])
            raise UnknownName(kind="data", name=name, known=known)
        return self.handle(self._ids[name])

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
