"""Pack weights in the first call of a process while torch is being imported.

In: the delegates that a graph needs. Out: their weights are checked and packed by the
time torch is imported, a second later: hashing and packing run on another processor,
since they release the GIL. If torch is already imported, nothing is done ahead.
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
