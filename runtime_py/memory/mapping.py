"""System calls that replace pages of an arena by others: Linux only.

Python's own `mmap` cannot map at a given address. In: addresses inside a map that the
caller owns. Out: whether it worked; a failure leaves the old pages. (The kernel counts
maps before it removes anything; mm/mmap.c, do_mmap.)
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from kvc.runtime.memory.arenas import NORESERVE

_ACCESS: Final = mmap.PROT_READ | mmap.PROT_WRITE
_FIXED: Final = 0x10  # MAP_FIXED, for which Python has no name
_OVER: Final = _FIXED | NORESERVE
_NOTHING: Final = -1


def is_available() -> bool:
    """Tell whether pages can be shared here; where not, a fork copies."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def map_privately(address: int, fd: int, runs: Sequence[Sequence[int]]) -> int:
    """Put private maps of a file over runs of pages, each at its own offset.

    Stops at the first that the system refuses. Returns how many there are.
    """
    place, flags = _calls()[0], mmap.MAP_PRIVATE | _OVER
    for done, (start, end) in enumerate(runs):
        here = address + start
        if place(here, end - start, _ACCESS, flags, fd, start) != here:
            return done
    return len(runs)


def map_nothing(address: int, nbytes: int) -> bool:
    """Put fresh anonymous memory over a run of pages, without huge pages."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _OVER
    place, advise = _calls()
    if place(address, nbytes, _ACCESS, flags, _NOTHING, 0) != address:
        return False
    # A kernel without huge pages knows no advice on them.
    advise(address, nbytes, mmap.MADV_NOHUGEPAGE)
    return True


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
