"""Share work between the calling thread and a temporary second thread.

This saves time if the work releases the GIL, as reading and hashing do. In: items, and
a function that processes items. Out: nothing, or the first error of the two threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def share(
    todo: Iterator[T], work: Callable[[Iterator[T]], None], twice: bool = True
) -> None:
    """Run `work` in two threads, which share one iterator; return when both have ended.

    Args:
        todo: an iterator whose `next` is atomic under the GIL, made by `iter` of a
            list, `enumerate` or the like; not a generator.
        work: processes items until the iterator is empty. If `work` fails in one
            thread, the other thread gets no more items.
        twice: whether to start a second thread; if not, the calling thread does all
            work.

    Raises:
        BaseException: any exception that `work` raises.
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
    except RuntimeError:  # the system refuses to start a thread
        twice = False
    try:
        drain()
    finally:
        if twice:
            second.join()  # the thread may still write into the caller's memory
    if errors:
        raise errors[0]
