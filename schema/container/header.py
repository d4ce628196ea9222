"""The first 128 bytes of a file: their fields, writing, reading, checks.

The layout is in FORMAT.md. It is the same for all format versions, so that any kvc can
tell a damaged file from one of another version, and the same for bundles and data
files, which differ in their magic. The end of the file, a bundle's program or a data
file's index, is called its *tail* here.
"""

import hashlib
import struct
from typing import Final

from kvc.schema.container.kinds import (
    BUNDLE_MAGIC,
    DATA_MAGIC,
    SESSION_MAGIC,
    guess_kind,
)
from kvc.schema.errors import (
    BadMagic,
    BadStructure,
    DigestMismatch,
    LimitExceeded,
    Truncated,
    UnsupportedVersion,
    WrongKind,
)
from kvc.schema.frozen import frozen
from kvc.schema.verify.limits import MAX_INDEX_NBYTES, MAX_PROGRAM_NBYTES
from kvc.schema.version import FORMAT_VERSION

HEADER_NBYTES: Final = 128
_SEALED: Final = struct.Struct("<8sIIQQQ32s24x")  # the bytes under the header's digest


@frozen
class Header:
    """What a header says; offsets and sizes are in bytes."""

    version: int
    flags: int
    file_nbytes: int
    tail_offset: int
    tail_nbytes: int
    tail_digest: bytes


@frozen
class Kind:
    """A kind of file: its name, how it begins, what its tail is called, the limit."""

    name: str
    magic: bytes
    tail: str
    max_nbytes: int


BUNDLE: Final = Kind("a bundle (.kvc)", BUNDLE_MAGIC, "program", MAX_PROGRAM_NBYTES)
DATA: Final = Kind("a data file (.kvd)", DATA_MAGIC, "index", MAX_INDEX_NBYTES)


def pack_header(header: Header, kind: Kind = BUNDLE) -> bytes:
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


def parse_header(raw: bytes, file_nbytes: int, path: str, kind: Kind) -> Header:
    """Return the header in the first bytes of a file of `file_nbytes`.

    Raises:
        BadMagic: the file is something else.
        WrongKind: it is a kvc file of another kind.
        Truncated: the file is shorter or longer than it says.
        DigestMismatch: the header is damaged.
        UnsupportedVersion: the file is of another format version.
        BadStructure: the header says what cannot be.
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


def _check_header(header: Header, file_nbytes: int, path: str, kind: Kind) -> None:
    if header.version != FORMAT_VERSION:
        raise UnsupportedVersion(
            path=path, found=header.version, expected=FORMAT_VERSION
        )
    if header.file_nbytes != file_nbytes:
        raise Truncated(
            path=path,
            found=file_nbytes,
            what="what its header describes",
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
