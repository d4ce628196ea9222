"""Share work between this thread and a temporary second one.

For work that releases the GIL, such as reading and hashing. In: items, and what to do
with each. Out: nothing, or the first error of either thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def share(
    todo: Iterator[T], work: Callable[[Iterator[T]], None], twice: bool = True
) -> None:
    """Run `work` on one iterator in two threads; return when both are done.

    Args:
        todo: made by `iter` of a list, `enumerate` or the like, whose step the GIL
            makes one; not a generator.
        work: takes items until there are none. When it fails in one thread, there are
            none left for the other.
        twice: whether a second thread is worth it; without one, all is done here.

    Raises:
        BaseException: what `work` raises.
    """
    errors: list[BaseException] = []

    def drain() -> None:
        try:
            work(todo)
        finally:
            deque(todo, maxlen=0)

    def guarded() -> None:
        try:
            drain()
        except BaseException as error:
            errors.append(error)

    second = threading.Thread(target=guarded, name="kvc-second", daemon=True)
    try:
        if twice:
            second.start()
    except RuntimeError:  # the system gives no thread
        twice = False
    try:
        drain()
    finally:
        if twice:
            second.join()  # it may still write into the caller's memory
    if errors:
        raise errors[0]
