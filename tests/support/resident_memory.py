"""How much memory this process really holds, as Linux tells it."""

import ctypes
import mmap
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages are seen in /proc")


def resident_nbytes() -> int:
    """Return the bytes of anonymous memory that this process holds."""
    return _status("RssAnon")


def _status(field: str) -> int:
    _trim()
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(field)]
    return int(line.split()[1]) * 1024


def _trim() -> None:
    """Let malloc return what is free, so that none of it goes between two looks."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)


def is_resident(address: int) -> bool:
    """Tell whether the first whole page from an address on is in memory."""
    page = -(-address // mmap.PAGESIZE)
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(page * 8)
        return bool(int.from_bytes(pagemap.read(8), "little") >> 63)


def map_field(field: str, *, path: object = None, address: int | None = None) -> int:
    """Return the sum of a field of smaps, in bytes, over some of the maps.

    Args:
        field: such as `Rss` or `AnonHugePages`.
        path: of the file that is mapped; None for any.
        address: that lies in the map; None for any.
    """
    total, chosen = 0, False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            head, *rest = line.split()
            if "-" in head and not head.endswith(":"):
                start, end = (int(part, 16) for part in head.split("-"))
                inside = address is None or start <= address < end
                named = path is None or (bool(rest[4:]) and rest[-1] == str(path))
                chosen = inside and named
            elif chosen and head == f"{field}:":
                total += int(rest[0]) * 1024
    return total


def count_maps() -> int:
    """Return how many maps this process has."""
    with Path("/proc/self/maps").open() as lines:
        return sum(1 for _ in lines)


def count_descriptors() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
