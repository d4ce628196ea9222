"""`BundleFile`: an open bundle whose program has passed every check.

Only header and program are read at opening; blobs are read, and checked against
their digests, when asked for. Nothing is mapped and torch is not needed.
"""

import hashlib
import os
import stat
from types import TracebackType
from typing import Final, Self

from kvc.schema.codec import decode
from kvc.schema.container.header import HEADER_NBYTES, Header, parse_header
from kvc.schema.container.layout import Layout, check_layout
from kvc.schema.digests import BlobHasher, blob_digest
from kvc.schema.errors import (
    BadStructure,
    DigestMismatch,
    FileChanged,
    FileProblem,
    Truncated,
)
from kvc.schema.model import Program
from kvc.schema.verify import verify_program

_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK_NBYTES: Final = 8 << 20
_Identity = tuple[int, int, int, int]


class BundleFile:
    """An open bundle.

    Attributes:
        path: as it was given.
        fd: the descriptor; it belongs to this object.
        size: of the file, in bytes.
        header: what the first bytes say.
        program: decoded and verified.
        layout: where zero padding lies.
    """

    def __init__(self, path: str | os.PathLike[str], thorough: bool = False) -> None:
        """Open a bundle and check its program; `thorough` as in `verify_program`.

        Raises:
            FileProblem: the system refuses, or it is no plain file.
            FormatError: the bytes are wrong.
        """
        self.path = os.fspath(path)
        self.fd = -1
        try:
            self.fd, self._identity = _open(self.path)
            self.size = self._identity[0]
            self.header = parse_header(self._read_head(), self.size, self.path)
            self.program = self._read_program(thorough)
            self.layout: Layout = check_layout(self.program, self.header, self.path)
            self._check_zeros(self.layout.program_padding, self.header.program_offset)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a bundle; raises as the constructor."""
        return cls(path)

    @property
    def digest(self) -> str:
        """Return the program's SHA-256 in hexadecimal: the identity of the bundle."""
        return self.header.program_digest.hex()

    def read_blob(self, blob: int) -> bytes:
        """Return the bytes of a blob of this file, checked.

        Raises:
            DigestMismatch: they are damaged.
            BadStructure: the padding before them is not zero.
            FileProblem, Truncated: they cannot be read.
        """
        entry = self.program.blobs[blob]
        assert entry.file == 0, "the blob is in another file"
        content = self._pread(entry.offset, entry.nbytes)
        self.check_blob(blob, content)
        return content

    def check_blob(self, blob: int, content: bytes | memoryview) -> None:
        """Check bytes that were read or mapped as a blob's; raises as `read_blob`."""
        self._check_digest(blob, blob_digest(content))

    def stream_blob(self, blob: int) -> None:
        """Check a blob of any size in little memory; raises as `read_blob`."""
        entry, hasher = self.program.blobs[blob], BlobHasher()
        for start in range(0, entry.nbytes, _CHUNK_NBYTES):
            nbytes = min(_CHUNK_NBYTES, entry.nbytes - start)
            hasher.update(self._pread(entry.offset + start, nbytes))
        self._check_digest(blob, hasher.digest())

    def check_unchanged(self) -> None:
        """Check that the file is still the one that was opened.

        Raises:
            FileChanged: its size, times or inode differ.
        """
        if _identity(os.fstat(self.fd)) != self._identity:
            raise FileChanged(path=self.path)

    def close(self) -> None:
        """Close the descriptor; closing twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_head(self) -> bytes:
        return self._pread(0, min(HEADER_NBYTES, self.size))

    def _read_program(self, thorough: bool) -> Program:
        header: Header = self.header
        raw = self._pread(header.program_offset, header.program_nbytes)
        if hashlib.sha256(raw).digest() != header.program_digest:
            raise DigestMismatch(
                path=self.path,
                what="the program",
                nbytes=header.program_nbytes,
                offset=header.program_offset,
            )
        program = decode(raw, self.path)
        verify_program(program, self.path, thorough)
        return program

    def _check_digest(self, blob: int, digest: bytes) -> None:
        entry = self.program.blobs[blob]
        self._check_zeros(self.layout.padding[blob], entry.offset)
        if digest != entry.digest:
            names = [named.name for named in self.program.names if named.blob == blob]
            raise DigestMismatch(
                path=self.path,
                what=" = ".join(names) or f"blob {blob}",
                nbytes=entry.nbytes,
                offset=entry.offset,
            )

    def _check_zeros(self, start: int, end: int) -> None:
        if any(self._pread(start, end - start)):
            raise BadStructure(path=self.path, offset=start, what="padding is not zero")

    def _pread(self, offset: int, nbytes: int) -> bytes:
        """Read exactly, however the system splits it."""
        parts: list[bytes] = []
        while nbytes:
            try:
                part = os.pread(self.fd, min(nbytes, 1 << 30), offset)
            except OSError as error:
                reason = error.strerror or str(error)
                raise FileProblem(path=self.path, reason=reason) from error
            if not part:
                raise Truncated(
                    path=self.path,
                    found=offset,
                    what="a part",
                    expected=offset + nbytes,
                )
            parts.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def verify_bundle(path: str | os.PathLike[str]) -> None:
    """Check all of a bundle: every blob and padding, and memory by brute force.

    Raises:
        FileProblem: it cannot be read.
        FormatError: something is wrong with it.
    """
    with BundleFile(path, thorough=True) as bundle:
        for blob, entry in enumerate(bundle.program.blobs):
            if entry.file == 0:
                bundle.stream_blob(blob)


def _open(path: str) -> tuple[int, _Identity]:
    try:
        fd = os.open(path, _OPEN)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileProblem(path=path, reason=reason) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        what = "folder" if stat.S_ISDIR(status.st_mode) else "special file"
        raise FileProblem(path=path, reason=f"it is a {what}, not a kvc file")
    return fd, _identity(status)


def _identity(status: os.stat_result) -> _Identity:
    # Without the change time: a rename over the file moves it, yet the old inode stays.
    return (
        status.st_size,
        status.st_mtime_ns,
        status.st_ino,
        status.st_dev,
    )
