"""Change the bytes of a bundle and make its digests right again.

Without this a mutated file would only test SHA-256.
"""

import hashlib
from pathlib import Path

from kvc.schema.container.header import (
    DATA,
    FORMAT_VERSION,
    HEADER_NBYTES,
    Header,
    pack_header,
)


def seal(blobs: bytes, program: bytes, *magic: bytes) -> bytes:
    """Return the file of `blobs` (all between header and program) and `program`."""
    start = HEADER_NBYTES + len(blobs)
    digest = hashlib.sha256(program).digest()
    nbytes = start + len(program)
    header = Header(FORMAT_VERSION, 0, nbytes, start, len(program), digest)
    return pack_header(header, *magic) + blobs + program


def seal_data(blobs: bytes, index: bytes) -> bytes:
    """Return the data file of `blobs` (all between header and index) and `index`."""
    return seal(blobs, index, DATA)


def reseal_header(raw: bytes) -> bytes:
    """Return a file whose changed header has the right digest."""
    return raw[:96] + hashlib.sha256(raw[:96]).digest() + raw[128:]


def parts(path: Path) -> tuple[bytes, bytes]:
    """Return what lies between header and program, and the program."""
    raw = path.read_bytes()
    start = int.from_bytes(raw[24:32], "little")
    return raw[HEADER_NBYTES:start], raw[start:]
