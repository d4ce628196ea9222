"""Measure how much memory this process has in use, as Linux counts it."""

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

# A test that looks at this process in /proc; conftest.py says what is done before it.
LINUX = pytest.mark.linux


def resident_nbytes() -> int:
    """Return the bytes of anonymous memory that this process holds, swapped or not."""
    _trim()
    lines = Path("/proc/self/status").read_text().splitlines()
    held = [line.split()[1] for line in lines if line.startswith(("RssAnon", "VmSwap"))]
    assert len(held) == 2
    return sum(map(int, held)) * 1024


def _trim() -> None:
    """Let malloc return its free memory to the system before a measurement."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)


def is_resident(address: int) -> bool:
    """Tell whether the first whole page after an address is in memory or swapped."""
    page = -(-address // mmap.PAGESIZE)
    return resident_within(page * mmap.PAGESIZE, mmap.PAGESIZE) > 0


def resident_within(address: int, nbytes: int) -> int:
    """Return how many bytes of a span's whole pages are in memory or swapped.

    Memory of this process outside the span does not count.
    """
    first = -(-address // mmap.PAGESIZE)
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(first * 8)
        entries = pagemap.read(((address + nbytes) // mmap.PAGESIZE - first) * 8)
    held = np.frombuffer(entries, np.uint64) >> np.uint64(62)
    return int(np.count_nonzero(held)) * mmap.PAGESIZE


def map_field(field: str, *, path: object = None, address: int | None = None) -> int:
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


def count_maps(path: object = "") -> int:
    """Return how many memory maps this process has: of the file `path`, or all."""
    with Path("/proc/self/maps").open() as lines:
        return sum(str(path) in line for line in lines)


def count_descriptors() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
