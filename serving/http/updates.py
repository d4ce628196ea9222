"""`Courier`, `Mailbox`: updates of the scheduler's thread reach the event loop.

In: items from any thread. Out: for each request, all items that have come since it last
looked. The thread only appends to a queue; whatever the threads deliver before the
event loop turns to it costs one call.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Courier:
    """Carries items from threads to the mailboxes of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the event loop of the mailboxes."""
        self._loop = loop
        self._carried: deque[Callable[[], None]] = deque()
        self._called = False

    def carry(self, put: Callable[[], None]) -> None:
        """Run a function in the event loop soon; may be called from any thread."""
        self._carried.append(put)
        if not self._called:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._put_all)
            except RuntimeError:  # the event loop has ended: nobody waits any more
                self._carried.clear()

    def _put_all(self) -> None:
        # First: what is appended from now on is either seen below, or calls again.
        self._called = False
        while self._carried:
            self._carried.popleft()()


class Mailbox(Generic[Item]):
    """The items of one request, in order."""

    def __init__(self, courier: Courier) -> None:
        """Let a courier bring the items."""
        self._courier = courier
        self._items: list[Item] = []
        self._waiting: asyncio.Future[None] | None = None
        self._gone = False

    def deliver(self, item: Item) -> None:
        """Add an item; may be called from any thread."""
        self._courier.carry(partial(self._put, item))

    def _put(self, item: Item) -> None:
        self._items.append(item)
        self._wake()

    def leave(self) -> None:
        """Tell in the event loop that nobody wants the items any more."""
        self._gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> Sequence[Item]:
        """Wait for items; return all that have come, none if nobody wants them."""
        if not self._items and not self._gone:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
            self._waiting = None
        items, self._items = self._items, []
        return () if self._gone else items
