"""Updates from threads: none is lost, and many cost the event loop one call."""

import asyncio
import threading

from kvc.serving.http.updates import Courier, Mailbox


def test_all_items_arrive_in_order_from_several_threads():
    async def run():
        courier = Courier(asyncio.get_running_loop())
        boxes = [Mailbox(courier) for _ in range(4)]

        def deliver(box):
            for number in range(2000):
                box.deliver(number)

        threads = [threading.Thread(target=deliver, args=(box,)) for box in boxes]
        for thread in threads:
            thread.start()
        for box in boxes:
            found = []
            while len(found) < 2000:
                found += await box.take()
            assert found == list(range(2000))
        for thread in threads:
            thread.join()

    asyncio.run(run())


def test_items_that_come_together_are_one_call_and_one_list():
    async def run():
        loop, calls = asyncio.get_running_loop(), []
        courier, wake = Courier(loop), loop.call_soon_threadsafe

        def counted(function):
            calls.append(function)
            return wake(function)

        loop.call_soon_threadsafe = counted
        one, other = Mailbox(courier), Mailbox(courier)
        for number in range(5):
            one.deliver(number)
            other.deliver(-number)
        assert list(await one.take()) == [0, 1, 2, 3, 4]
        assert list(await other.take()) == [0, -1, -2, -3, -4]
        assert len(calls) == 1
        one.deliver(5)
        assert list(await one.take()) == [5]
        assert len(calls) == 2

    asyncio.run(run())


def test_who_leaves_gets_nothing_more():
    async def run():
        box = Mailbox(Courier(asyncio.get_running_loop()))
        waiting = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        box.leave()
        assert list(await waiting) == []
        box.deliver(1)
        await asyncio.sleep(0.01)
        assert list(await box.take()) == []

    asyncio.run(run())


def test_items_after_the_end_of_the_loop_do_no_harm():
    async def run():
        return Mailbox(Courier(asyncio.get_running_loop()))

    box = asyncio.run(run())
    box.deliver(1)
    box.deliver(2)
