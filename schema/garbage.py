"""Pause Python's garbage collector while tens of thousands of values are made.

None of these values is garbage or part of a cycle, yet the collector would examine all
of them after each 700 new objects: a sixth of the time of reading a program
(2026-11-21).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector of this process, unless it is off already."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
