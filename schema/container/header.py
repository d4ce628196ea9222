"""The header of a file, its first 128 bytes, and the layout of the file's parts.

A file is its header, its blobs in the order of their offsets, and its tail (a bundle's
program or a data file's index). Each of these parts starts at the next multiple of the
part's alignment, and zeros fill the gaps. So parts do not overlap, all bytes between
parts are zero, and nothing follows the tail.

The layout of the header is in FORMAT.md. It is the same for all format versions, so
that any version of kvc can tell a damaged file from a file of another format version.
It is also the same for bundles and data files; only the magic (the first bytes) tells
them apart.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from kvc.schema.container.kinds import (
    BUNDLE_MAGIC,
    DATA_MAGIC,
    SESSION_MAGIC,
    guess_kind,
)
from kvc.schema.errors import (
    BadMagic,
    BadProgram,
    BadStructure,
    DigestMismatch,
    LimitExceeded,
    Truncated,
    UnsupportedVersion,
    WrongKind,
)
from kvc.schema.frozen import frozen
from kvc.schema.model import Blob
from kvc.schema.verify.limits import (
    MAX_BLOB_ALIGN,
    MAX_INDEX_NBYTES,
    MAX_PROGRAM_NBYTES,
)

# The version of the file format, and its history.


FORMAT_VERSION: Final = 0


# Layout of a file's parts, and its header.


HEADER_NBYTES: Final = 128
_SEALED: Final = struct.Struct(
    "<8sIIQQQ32s24x"
)  # the bytes that the header's digest covers


@frozen
class Header:
    """The decoded header; offsets and sizes are in bytes."""

    version: int
    flags: int
    file_nbytes: int
    tail_offset: int
    tail_nbytes: int
    tail_digest: bytes


@frozen
class FileKind:
    """A kind of file, bundle or data file.

    The fields are the name of the kind, its magic (the first bytes of a file), the name
    of its tail, and the maximum size of the tail.
    """

    name: str
    magic: bytes
    tail: str
    max_nbytes: int


BUNDLE: Final = FileKind("a bundle (.kvc)", BUNDLE_MAGIC, "program", MAX_PROGRAM_NBYTES)
DATA: Final = FileKind("a data file (.kvd)", DATA_MAGIC, "index", MAX_INDEX_NBYTES)


def pack_header(header: Header, kind: FileKind = BUNDLE) -> bytes:
    """Return the 128 bytes of a header."""
    sealed = _SEALED.pack(
        kind.magic,
        header.version,
        header.flags,
        header.file_nbytes,
        header.tail_offset,
        header.tail_nbytes,
        header.tail_digest,
    )
    return sealed + hashlib.sha256(sealed).digest()


def parse_header(raw: bytes, file_nbytes: int, path: str, kind: FileKind) -> Header:
    """Decode the header in the first bytes of a file, and check it.

    Args:
        raw: the first bytes of the file.
        file_nbytes: the size of the file.
        path: path of the file, for messages.
        kind: the expected kind of file.

    Raises:
        BadMagic: the file is not a kvc file.
        WrongKind: the file is a kvc file of another kind.
        Truncated: the file is shorter or longer than the header says.
        DigestMismatch: the header is damaged.
        UnsupportedVersion: the file is of another format version.
        BadStructure: the header contradicts itself.
        LimitExceeded: the tail is too large.
    """
    if not raw.startswith(kind.magic) and not (raw and kind.magic.startswith(raw)):
        guess, found = guess_kind(raw), repr(raw[:8])
        if raw.startswith((BUNDLE_MAGIC, DATA_MAGIC, SESSION_MAGIC)):
            raise WrongKind(path=path, found=found, guess=guess, expected=kind.name)
        raise BadMagic(path=path, found=found, guess=guess)
    if len(raw) < HEADER_NBYTES:
        raise Truncated(
            path=path, found=file_nbytes, what="the header", expected=HEADER_NBYTES
        )
    sealed = raw[: _SEALED.size]
    if hashlib.sha256(sealed).digest() != raw[_SEALED.size :]:
        raise DigestMismatch(path=path, what="the header", nbytes=len(sealed), offset=0)
    header = Header(*_SEALED.unpack(sealed)[1:])
    _check_header(header, file_nbytes, path, kind)
    if any(sealed[-24:]):
        raise BadStructure(path=path, offset=72, what="reserved bytes are not zero")
    return header


def _check_header(header: Header, file_nbytes: int, path: str, kind: FileKind) -> None:
    if header.version != FORMAT_VERSION:
        raise UnsupportedVersion(
            path=path, found=header.version, expected=FORMAT_VERSION
        )
    if header.file_nbytes != file_nbytes:
        raise Truncated(
            path=path,
            found=file_nbytes,
            what="its header",
            expected=header.file_nbytes,
        )
    if header.flags:
        raise BadStructure(path=path, offset=12, what="unknown flags")
    if header.tail_nbytes > kind.max_nbytes:
        raise LimitExceeded(
            path=path,
            what=f"the {kind.tail}, in bytes,",
            found=header.tail_nbytes,
            limit=kind.max_nbytes,
        )
    end = header.tail_offset + header.tail_nbytes
    if header.tail_offset < HEADER_NBYTES or end != file_nbytes:
        what = f"the {kind.tail} is not the last part"
        raise BadStructure(path=path, offset=24, what=what)


TAIL_ALIGN: Final = 64


def default_align(nbytes: int) -> int:
    """Return the alignment of a blob of `nbytes` bytes.

    The alignment is 64 B; for blobs of at least 4 KiB, 4 KiB; of at least 4 MiB, 64
    KiB.
    """
    if nbytes >= 4 << 20:
        return 64 << 10
    return 4 << 10 if nbytes >= 4 << 10 else 64


def align_up(offset: int, align: int) -> int:
    """Return the smallest multiple of `align` that is at least `offset`."""
    return -(-offset // align) * align


@frozen
class PaddingLayout:
    """Where the zero padding lies in a file.

    Attributes:
        padding: for each blob id, the offset at which the padding before the blob
            begins.
        tail_padding: the offset at which the padding before the tail begins.
    """

    padding: dict[int, int]
    tail_padding: int


def check_layout(
    blobs: Sequence[Blob], header: Header, kind: FileKind, path: str
) -> PaddingLayout:
    """Check that header, blobs and tail fill a file; return where the padding lies.

    Only the blobs with `file` 0 lie in the file.

    Raises:
        BadProgram: parts of the file overlap, leave a hole, or are misaligned.
    """
    own = [(blob.offset, i) for i, blob in enumerate(blobs) if blob.file == 0]
    end, padding = HEADER_NBYTES, {}
    for offset, i in sorted(own):
        _check_blob(blobs[i], f"blob {i}", end, header.tail_offset, path)
        padding[i] = end
        end = offset + blobs[i].nbytes
    expected = align_up(end, TAIL_ALIGN)
    if header.tail_offset != expected:
        what = f"it is at {header.tail_offset}, after the blobs comes {expected}"
        raise BadProgram(path=path, where=kind.tail, what=what)
    return PaddingLayout(padding, end)


def _check_blob(blob: Blob, where: str, end: int, limit: int, path: str) -> None:
    align = blob.align
    if not 0 < align <= MAX_BLOB_ALIGN or align & (align - 1):
        what = f"alignment {align} is no power of two up to {MAX_BLOB_ALIGN}"
    elif blob.offset != align_up(end, align):
        what = (
            f"it is at {blob.offset}, not at the first multiple of {align} after {end}"
        )
    elif blob.nbytes > limit - blob.offset:
        what = f"its {blob.nbytes} bytes at {blob.offset} reach past the blobs' end"
    else:
        return
    raise BadProgram(path=path, where=where, what=what)
