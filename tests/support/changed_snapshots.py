"""Change files of saved sessions, and give them the digest of the changed content."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

LEAD = struct.Struct("<8sIQ")


def reseal(raw: bytes) -> bytes:
    """Return the bytes of a file with the correct digest at the end."""
    return raw[:-32] + hashlib.sha256(raw[:-32]).digest()


def change_header(path: Path, change: Callable[[dict], object]) -> None:
    """Apply `change` to the header of a saved session's file; correct the digest."""
    raw = path.read_bytes()
    magic, version, nbytes = LEAD.unpack(raw[: LEAD.size])
    header = json.loads(raw[LEAD.size : LEAD.size + nbytes])
    change(header)
    text = json.dumps(header).encode()
    rest = raw[LEAD.size + nbytes :]
    path.write_bytes(reseal(LEAD.pack(magic, version, len(text)) + text + rest))
