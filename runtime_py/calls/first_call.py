"""What the first call of a process does beside importing torch, which takes a second.

In: the delegates that a graph needs. Out: their weights are checked and packed by the
time torch is there, on another processor: hashing and packing hold no lock of Python.
Where torch is imported already, nothing is done ahead.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from kvc.runtime.delegates.base import Handle
from kvc.runtime.kernels import load_kernels
from kvc.schema.errors import KvcError


def import_beside_packing(
    delegates: Iterable[int], handle_of: Callable[[int], Handle]
) -> None:
    """Import torch and its kernels, and pack what delegates will need meanwhile.

    What fails here is left to who binds the graph: it fails there again, and is told
    with its place.

    Args:
        delegates: numbers of those that the graph calls.
        handle_of: makes one ready.
    """
    if "torch" in sys.modules:
        return
    importing = threading.Thread(target=_import_kernels, name="import torch")
    importing.start()
    try:
        with suppress(KvcError):
            for number in delegates:
                handle_of(number).pack()
    finally:
        importing.join()


def _import_kernels() -> None:
    with suppress(Exception):
        load_kernels()
