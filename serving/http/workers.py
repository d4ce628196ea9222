"""`Workers`: threads beside the event loop, with a queue that has an end.

In: functions. Out: their results. Functions run in the order in which they came; too
many that wait are refused, not queued.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from kvc.schema.errors import Closed, Overloaded

Made = TypeVar("Made")


class Workers:
    """Some threads that run functions.

    Attributes:
        waiting: how many functions somebody waits for.
    """

    def __init__(self, name: str, threads: int, queue: int) -> None:
        """Make the threads, which start when they are first needed.

        Args:
            name: the name of the threads.
            threads: how many there are.
            queue: how many functions may wait.
        """
        self._pool = ThreadPoolExecutor(threads, name)
        self._most, self.waiting = threads + queue, 0
        self._running: set[Future[Any]] = set()

    async def run(self, function: Callable[[], Made]) -> Made:
        """Run a function in a thread; one that waits is dropped if its caller is.

        Raises:
            Overloaded: too many functions wait.
            Closed: the threads have ended.
        """
        if self.waiting >= self._most:
            raise Overloaded(waiting=self.waiting, seconds=1.0)
        self.waiting += 1
        # Who leaves takes the function along: the pool keeps it until its turn comes.
        held = [function]
        try:
            try:
                future = self._pool.submit(lambda: held.pop()())
            except RuntimeError as error:
                raise Closed(kind="server") from error
            self._running.add(future)
            future.add_done_callback(self._running.discard)
            return await asyncio.wrap_future(future)
        finally:
            self.waiting -= 1
            held.clear()

    @property
    def is_busy(self) -> bool:
        """Tell whether a function runs, perhaps one that nobody waits for any more."""
        return any(future.running() for future in tuple(self._running))

    def close(self) -> None:
        """Drop what waits; do not wait for what runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
