"""`BlobStream`: append blobs to a new file, each content once.

In: contents, in chunks. Out: the location of each content. A content is hashed while it
is written. If the hash shows that this file, or a reused data file, already has the
same bytes, the new copy is cut off again. At most one chunk is held in memory.
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
    """The content of one name.

    Attributes:
        nbytes: the number of bytes.
        chunks: yields the bytes in order; a chunk is valid until the next one.
        key: names with equal keys have the same bytes, which are read once.
    """

    nbytes: int
    chunks: Callable[[], Iterator[memoryview]]
    key: Hashable


class BlobStream:
    """The blobs of one program, written to a file or found in reused files.

    Attributes:
        blobs: the blobs so far. `file` is 0 for a blob in the file being written, and
            the number of a reused file, from 1 on, for any other blob.
        end: the end offset of the file.
    """

    def __init__(self, file: TemporaryFile, reused: Sequence[ReusedFile]) -> None:
        """Leave room for the header in an empty file; raise the errors of `add`."""
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
        """Write a content at the next multiple of its alignment."""
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
        """Return an equal blob in a reused file, checked; None if no file has it."""
        for number, file in enumerate(self._reused, 1):
            place = file.find(blob)
            if place is not None:
                return replace(place, file=number)
        return None

    def write_tail(self, raw: bytes, kind: FileKind) -> bytes:
        """Write the part that ends the file; return the header for the file's start.

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
