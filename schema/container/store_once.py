"""`BlobStream`: append blobs to a new file; store blobs of equal bytes once.

In: contents, in chunks. Out: the blob of each content, which says where it is stored. A
content is hashed while it is written. If the hash shows that this file, or a reused
data file, already has the same bytes, the new copy is cut off again. At most one chunk
is in memory at a time.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from kvc.schema.container.header import (
    FORMAT_VERSION,
    HEADER_NBYTES,
    TAIL_ALIGN,
    FileKind,
    Header,
    align_up,
    default_align,
    pack_header,
)
from kvc.schema.container.reused import ReusedFile
from kvc.schema.container.temporary import TemporaryFile
from kvc.schema.digests import BlobHasher
from kvc.schema.frozen import frozen
from kvc.schema.model import Blob


@frozen
class Content:
    """The bytes of one named data.

    Attributes:
        nbytes: the number of bytes.
        chunks: yields the bytes in order; a chunk is valid until the next chunk.
        key: contents with equal keys have the same bytes, and only one of them is read.
    """

    nbytes: int
    chunks: Callable[[], Iterator[memoryview]]
    key: Hashable


class BlobStream:
    """The blobs of one program, written to a file or found in reused files.

    Attributes:
        blobs: the blobs so far. `Blob.file` is 0 for a blob in the file being written;
            for any other blob, it is the number of a reused file, counted from 1.
        end: the size of the file being written, in bytes.
    """

    def __init__(self, file: TemporaryFile, reused: Sequence[ReusedFile]) -> None:
        """Write zeros where the header will be, to an empty file.

        Raises:
            CannotWrite: the system refuses, for example because the disk is full.
        """
        self.blobs: list[Blob] = []
        self.end = HEADER_NBYTES
        self._file = file
        self._reused = reused
        self._by_key: dict[Hashable, int] = {}
        self._by_content: dict[tuple[bytes, int], int] = {}  # digest and size
        file.write(bytes(HEADER_NBYTES))

    def add(self, content: Content) -> int:
        """Store a content, unless its bytes are stored already; return its blob id.

        Raises:
            CannotWrite: the system refuses, for example because the disk is full.
            FormatError: the reused data file that has the content is damaged.
            Exception: any exception raised by the content's chunks.
        """
        if content.key not in self._by_key:
            self._by_key[content.key] = self._store(content)
        return self._by_key[content.key]

    def _store(self, content: Content) -> int:
        before = self.end
        blob = self._append(content)
        known = self._by_content.get((blob.digest, blob.nbytes))
        found = self._find(blob) if known is None else None
        if known is not None or found is not None:
            self._file.cut(before)
            self.end = before
        if known is not None:
            return known
        self._by_content[blob.digest, blob.nbytes] = len(self.blobs)
        self.blobs.append(found or blob)
        return len(self.blobs) - 1

    def _append(self, content: Content) -> Blob:
        """Write a content to the file, aligned; return the new blob."""
        align = default_align(content.nbytes)
        start, hasher, nbytes = align_up(self.end, align), BlobHasher(), 0
        self._file.write(bytes(start - self.end))
        for chunk in content.chunks():
            self._file.write(chunk)
            hasher.update(chunk)
            nbytes += chunk.nbytes
        assert nbytes == content.nbytes, f"{nbytes} bytes for {content}"
        self.end = start + nbytes
        return Blob(hasher.digest(), nbytes, 0, start, align)

    def _find(self, blob: Blob) -> Blob | None:
        """Return the blob of a reused file that has the same bytes, after a check.

        The result is None if no reused file has these bytes.
        """
        for number, file in enumerate(self._reused, 1):
            place = file.find(blob)
            if place is not None:
                return replace(place, file=number)
        return None

    def write_tail(self, raw: bytes, kind: FileKind) -> bytes:
        """Write the tail, which ends the file; return the header, which begins it.

        Raises:
            CannotWrite: the system refuses.
        """
        start = align_up(self.end, TAIL_ALIGN)
        header = Header(
            version=FORMAT_VERSION,
            flags=0,
            file_nbytes=start + len(raw),
            tail_offset=start,
            tail_nbytes=len(raw),
            tail_digest=hashlib.sha256(raw).digest(),
        )
        self._file.write(bytes(start - self.end))
        self._file.write(raw)
        self.end = header.file_nbytes
        return pack_header(header, kind)
