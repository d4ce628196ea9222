"""Threads beside the event loop, whose queue has an end."""

import asyncio
import gc
import threading
import weakref

import pytest

from kvc.schema.errors import Closed, Overloaded
from kvc.serving.http.workers import Workers


def test_too_many_that_wait_are_refused_and_later_ones_are_not():
    async def run():
        workers, free = Workers("test", 1, 1), threading.Event()
        first = asyncio.create_task(workers.run(lambda: free.wait(20)))
        second = asyncio.create_task(workers.run(lambda: 2))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 requests wait"):
            await workers.run(lambda: 3)
        assert workers.is_busy
        free.set()
        assert await first
        assert await second == 2
        assert await workers.run(lambda: 4) == 4
        workers.close()
        with pytest.raises(Closed):
            await workers.run(lambda: 5)

    asyncio.run(run())


def test_what_waits_is_dropped_with_its_caller():
    async def run():
        workers, free, done = Workers("test", 1, 5), threading.Event(), []
        first = asyncio.create_task(workers.run(lambda: free.wait(20)))
        second = asyncio.create_task(workers.run(lambda: done.append(2)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        assert workers.waiting == 1
        free.set()
        await first
        await workers.run(lambda: done.append(3))
        assert done == [3]
        workers.close()

    asyncio.run(run())


def test_what_was_dropped_is_not_kept_until_its_turn():
    class Body:
        def __call__(self):
            raise AssertionError("nobody waits for it")

    async def run():
        workers, free = Workers("test", 1, 5), threading.Event()
        first = asyncio.create_task(workers.run(lambda: free.wait(20)))
        body = Body()
        kept, second = weakref.ref(body), asyncio.create_task(workers.run(body))
        del body
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        del second
        gc.collect()
        assert kept() is None
        free.set()
        await first
        workers.close()

    asyncio.run(run())


def test_errors_of_functions_reach_their_callers():
    async def run():
        workers = Workers("test", 1, 5)
        with pytest.raises(ZeroDivisionError):
            await workers.run(lambda: 1 // 0)
        assert workers.waiting == 0
        workers.close()

    asyncio.run(run())
