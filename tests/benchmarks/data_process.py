"""What the processes of `data.py` count: memory of their own, pages of a file.

Linux alone. Used by kvc's Python and by the peer's, so that both count alike: the
standard library only. Nothing here guesses: what cannot be counted raises.
"""

import ctypes
import mmap
import os
from pathlib import Path

KINDS = ("anon", "file", "shmem")
_LABELS = dict(zip(("RssAnon:", "RssFile:", "RssShmem:"), KINDS, strict=True))


def residency() -> dict[str, int]:
    """Return the resident bytes of this process by kind, as the kernel counts them.

    Raises:
        OSError, ValueError: the kernel does not say.
    """
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        label, *rest = line.split()
        if label in _LABELS:
            found[_LABELS[label]] = int(rest[0]) * 1024
    if set(found) != set(KINDS):
        raise ValueError(f"/proc/self/status lacks one of {', '.join(_LABELS)}")
    return found


def grown(when: str, before: dict[str, int], now: dict[str, int]) -> dict[str, float]:
    """Return how much each kind has grown, as figures named after a moment."""
    return {f"{when}_{kind}": now[kind] - before[kind] for kind in KINDS}


def prepare_cache(path: str, cold: bool) -> None:
    """Drop a file from the page cache, or read all of it into there.

    Raises:
        RuntimeError: it did not work: another process maps the file or writes it, or
            the kernel takes pages back as fast as they are read.
    """
    nbytes = Path(path).stat().st_size
    for _ in range(5):
        _drop(path) if cold else _read(path)
        cached = cached_nbytes(path)
        if cached == 0 if cold else cached >= 0.999 * nbytes:
            return
    wanted = "none" if cold else "all"
    message = f"{path}: {cached} of {nbytes} bytes are in the page cache, not {wanted}"
    raise RuntimeError(message)


def _drop(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _read(path: str) -> None:
    with Path(path).open("rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def cached_nbytes(path: str) -> int:
    """Return how much of a file is in the page cache, in whole pages (mincore).

    Raises:
        OSError: the kernel does not say.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
        ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    nbytes = Path(path).stat().st_size
    file = os.open(path, os.O_RDONLY)
    try:
        place = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    finally:
        os.close(file)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap", path)
    pages = -(-nbytes // mmap.PAGESIZE)
    answer = ctypes.create_string_buffer(pages)
    failed = libc.mincore(place, nbytes, answer)
    libc.munmap(place, nbytes)
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", path)
    return sum(page & 1 for page in answer.raw) * mmap.PAGESIZE
