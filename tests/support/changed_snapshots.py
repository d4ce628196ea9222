"""Files of saved sessions that were changed, with the digest that belongs to them."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

LEAD = struct.Struct("<8sIQ")


def reseal(raw: bytes) -> bytes:
    """Return a file's bytes with the digest that they should have."""
    return raw[:-32] + hashlib.sha256(raw[:-32]).digest()


def change_header(path: Path, change: Callable[[dict], object]) -> None:
    """Rewrite a file with another header, and the digest that belongs to it."""
    raw = path.read_bytes()
    magic, version, nbytes = LEAD.unpack(raw[: LEAD.size])
    header = json.loads(raw[LEAD.size : LEAD.size + nbytes])
    change(header)
    text = json.dumps(header).encode()
    rest = raw[LEAD.size + nbytes :]
    path.write_bytes(reseal(LEAD.pack(magic, version, len(text)) + text + rest))
