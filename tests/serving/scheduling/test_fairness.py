"""Which request begins next: none waits for ever, none is kept out by others."""

import threading
import time

import numpy as np
import pytest
from asked_requests import SHORT, Heard, ask, assert_as_alone
from drafting_rows import VOCAB, write_checked

from kvc.runtime import BadSetting, load
from kvc.runtime.generation import GenerationSettings
from kvc.schema.errors import Overloaded
from kvc.serving.scheduling import Limits, Request, Scheduler

PROMPT = tuple(np.random.default_rng(0).integers(6, VOCAB, 60).tolist())


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("fair"), {}
    for kind in ("cache", "sums"):
        made[kind] = load(write_checked(folder / f"{kind}.kvc", kind, seq=32))
    yield made
    for program in made.values():
        program.close()


class Held:
    """A request of a scheduler of one row, whose listener holds up the thread."""

    def __init__(self, scheduler):
        self._go = threading.Event()
        scheduler.submit(Request((1,), SHORT), lambda _: self._go.wait(30))
        while scheduler.status.waiting:
            time.sleep(0.001)

    def go(self):
        self._go.set()


def test_a_large_request_begins_although_small_ones_go_on_arriving(programs):
    """It would need the bytes of all rows, which are never free at once."""
    program = programs["cache"]
    with Scheduler(program) as scheduler:
        whole = scheduler.foretold_nbytes(64)
    large = GenerationSettings(max_tokens=40)
    small = [GenerationSettings(max_tokens=3 + n) for n in range(4)]
    began = threading.Event()
    limits = Limits(rows=4, nbytes=whole, remembered_nbytes=0)
    with Scheduler(program, limits) as scheduler:
        needs = scheduler.foretold_nbytes(8)
        assert 2 * needs <= whole, "small ones would not run together"
        done = threading.Semaphore(0)

        def again(number, left):
            def hear(update):
                if update.ending and left and not began.is_set():
                    asked = Request((1 + number, 2), small[number], client=f"{number}")
                    scheduler.submit(asked, again(number, left - 1))
                elif update.ending:
                    done.release()

            return hear

        for number in range(4):
            asked = Request((1 + number, 2), small[number], client=f"{number}")
            scheduler.submit(asked, again(number, 150))
        big = Heard()
        asked = Request(PROMPT[:20], large, client="big")
        scheduler.submit(asked, lambda update: (began.set(), big(update)))
        for _ in range(4):
            assert done.acquire(timeout=60)
        assert big.last.ending == "max_tokens"
        assert scheduler.status.finished < 4 * 150


def test_a_client_with_many_requests_leaves_places_to_others(programs):
    with Scheduler(programs["cache"], Limits(rows=1, queue=16)) as scheduler:
        held = Held(scheduler)
        many = []
        with pytest.raises(Overloaded) as caught:
            while True:
                many.append(ask(scheduler, (2,), client="a"))
        assert (len(many), caught.value.waiting) == (14, 14)
        others = [ask(scheduler, (3,), client=name) for name in "bc"]
        with pytest.raises(Overloaded):
            ask(scheduler, (3,), client="d")
        held.go()
        assert all(one.last.ending == "max_tokens" for one in (*many, *others))


def test_one_that_waits_for_a_prompt_begins_when_its_reader_is_cancelled(programs):
    program = programs["cache"]
    with Scheduler(program, Limits(rows=3, stall=0.0)) as scheduler:
        rows, slow = scheduler._turns.rows, threading.Event()
        read = rows.read

        def reads(row, tokens):
            slow.wait(0.05)
            return read(row, tokens)

        rows.read = reads
        runs = ask(scheduler, (1, 2), GenerationSettings(max_tokens=40))
        assert runs.first.wait(60)
        reader = ask(scheduler, PROMPT[:58])
        waits = ask(scheduler, (*PROMPT[:50], 7, 7))
        while scheduler.status.running < 2:
            time.sleep(0.001)
        reader.ticket.cancel()
        slow.set()
        assert_as_alone(program, waits, (*PROMPT[:50], 7, 7))
        assert reader.last.ending in ("cancelled", "max_tokens")


def test_nobody_waits_for_a_text_that_could_not_be_used(programs):
    """Sums of tokens cannot go back to where two prompts part."""
    with Scheduler(programs["sums"], Limits(rows=3)) as scheduler:
        held = Held(scheduler)
        heard = [ask(scheduler, (*PROMPT[:50], *rest)) for rest in ((7, 8), (8, 7))]
        begun = []
        begin = scheduler._turns._admission.begin
        scheduler._turns._admission.begin = lambda job: (
            begun.append(begin(job)),
            begun[-1],
        )[1]
        held.go()
        assert all(one.last.ending for one in heard)
        assert begun == [True, True]


def test_a_short_prompt_does_not_wait_for_the_whole_of_a_long_one(programs):
    program, order = programs["cache"], []
    with Scheduler(program, Limits(rows=4, stall=0.0)) as scheduler:
        held = Held(scheduler)

        def hear(name):
            one = Heard()
            return one, lambda update: (order.append(name), one(update))

        last = GenerationSettings(max_tokens=1)
        long, on_long = hear("long")
        short, on_short = hear("short")
        runs = ask(scheduler, (4, 5), GenerationSettings(max_tokens=40))
        scheduler.submit(Request(PROMPT, last), on_long)
        scheduler.submit(Request((9, 8, 7), last), on_short)
        held.go()
        assert all(one.last.ending for one in (long, short, runs))
    assert order == ["short", "long"]


def test_bytes_for_no_row_are_refused(programs):
    with pytest.raises(BadSetting, match="nbytes"):
        Scheduler(programs["cache"], Limits(nbytes=100))
