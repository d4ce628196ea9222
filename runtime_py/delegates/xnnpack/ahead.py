"""Do work ahead of who needs it, in a second thread.

In: items in the order in which they are needed, and what to do with each. The work
releases the GIL, as reading and hashing do, and whoever needs an item does what is left
of it, or waits for it. Out: nothing.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

T = TypeVar("T")

_MOST: Final = 2  # items, of which each may take as much memory as the largest weight


@contextmanager
def ahead_of(
    items: Sequence[T], work: Callable[[T], None]
) -> Iterator[Callable[[], None]]:
    """Work on a few items ahead; what it raises is left to who needs the item.

    Gives what is to be called whenever somebody gets to the next item.
    """
    room, stopped = threading.Semaphore(_MOST), threading.Event()

    def run() -> None:
        with suppress(Exception):
            for item in items:
                room.acquire()
                if stopped.is_set():
                    return
                work(item)

    thread = threading.Thread(target=run, name="kvc-ahead", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system gives no thread
        yield room.release
        return
    try:
        yield room.release
    finally:
        stopped.set()
        room.release()
        thread.join()
