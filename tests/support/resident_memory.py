"""How much memory this process really holds, as Linux tells it."""

import mmap
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages are seen in /proc")


def resident_nbytes() -> int:
    """Return the bytes of anonymous memory that this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


def is_resident(address: int) -> bool:
    """Tell whether the first whole page from an address on is in memory."""
    page = -(-address // mmap.PAGESIZE)
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(page * 8)
        return bool(int.from_bytes(pagemap.read(8), "little") >> 63)
