"""The system calls that put pages where an arena has others: Linux alone.

Python's own `mmap` cannot map at a given address. In: addresses inside a map that the
caller owns. Out: whether it worked; a failure leaves what was there. (The kernel counts
maps before it takes anything away; mm/mmap.c, do_mmap.)
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Final

from kvc.runtime.arenas import NORESERVE

_FIXED: Final = 0x10  # MAP_FIXED, for which Python has no name
_NOTHING: Final = -1


def is_available() -> bool:
    """Tell whether pages can be shared here; where not, a fork copies."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def map_privately(address: int, nbytes: int, fd: int, offset: int) -> bool:
    """Put a private map of a file over a run of pages."""
    return _map(address, nbytes, mmap.MAP_PRIVATE, fd, offset)


def map_nothing(address: int, nbytes: int) -> bool:
    """Put fresh anonymous memory over a run of pages, without huge pages."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if not _map(address, nbytes, flags, _NOTHING, 0):
        return False
    # A kernel without huge pages knows no advice on them.
    _calls()[1](address, nbytes, mmap.MADV_NOHUGEPAGE)
    return True


def _map(address: int, nbytes: int, flags: int, fd: int, offset: int) -> bool:
    access = mmap.PROT_READ | mmap.PROT_WRITE
    flags |= _FIXED | NORESERVE
    return _calls()[0](address, nbytes, access, flags, fd, offset) == address


@cache
def _calls() -> tuple[Callable[..., int], Callable[..., int]]:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library.mmap, library.madvise
