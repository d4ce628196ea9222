"""Change the bytes of a bundle and make its digests right again.

With wrong digests, a test with changed bytes would only test the check of SHA-256.
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
    """Return a valid file: header, then `blobs`, then `program`.

    `blobs` has all bytes between the header and the program.
    """
    start = HEADER_NBYTES + len(blobs)
    digest = hashlib.sha256(program).digest()
    nbytes = start + len(program)
    header = Header(FORMAT_VERSION, 0, nbytes, start, len(program), digest)
    return pack_header(header, *magic) + blobs + program


def seal_data(blobs: bytes, index: bytes) -> bytes:
    """Return a valid data file: header, then `blobs`, then `index`.

    `blobs` has all bytes between the header and the index.
    """
    return seal(blobs, index, DATA)


def reseal_header(raw: bytes) -> bytes:
    """Return a file's bytes with the right digest for its changed header."""
    return raw[:96] + hashlib.sha256(raw[:96]).digest() + raw[128:]


def parts(path: Path) -> tuple[bytes, bytes]:
    """Return the bytes between header and program, and the program's bytes."""
    raw = path.read_bytes()
    start = int.from_bytes(raw[24:32], "little")
    return raw[HEADER_NBYTES:start], raw[start:]
