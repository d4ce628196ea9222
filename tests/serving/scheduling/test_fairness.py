"""Which request begins next: none waits for ever, none is kept out by others."""

import threading
import time

import numpy as np
import pytest
from asked_requests import SHORT, Heard, ask, assert_as_alone
from drafting_rows import VOCAB
from made_once import MadeOnce

from kvc.runtime import BadSetting, load
from kvc.runtime.generation import GenerationSettings
from kvc.schema.errors import Overloaded
from kvc.serving.scheduling import Limits, Request, Scheduler

PROMPT = tuple(np.random.default_rng(0).integers(6, VOCAB, 60).tolist())


@pytest.fixture(scope="module")
def programs(bundles):
    made = MadeOnce(lambda kind: load(bundles[kind]))
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
    """It needs all bytes, and of two lines of small ones always one runs."""
    program, most = programs["cache"], 100
    with Scheduler(program) as scheduler:
        whole = scheduler.foretold_nbytes(64)
    limits = Limits(rows=4, nbytes=whole, remembered_nbytes=0)
    with Scheduler(program, limits) as scheduler:
        assert 2 * scheduler.foretold_nbytes(8) <= whole, "no two small ones would run"
        big, done, began = Heard(), threading.Semaphore(0), threading.Event()

        def small(line, left):
            heard = []

            def hear(update):
                heard.append(update)
                if line == 0 and left == most and len(heard) == 3:
                    small(1, most)
                    asked = Request(PROMPT[:20], GenerationSettings(max_tokens=44))
                    scheduler.submit(asked, lambda u: (began.set(), big(u)))
                if update.ending and left and not began.is_set():
                    small(line, left - 1)
                elif update.ending:
                    done.release()

            asked = Request((1 + line, 2), SHORT, client=f"{line}")
            scheduler.submit(asked, hear)

        small(0, most)
        assert done.acquire(timeout=60)
        assert done.acquire(timeout=60)
        assert big.last.ending in ("max_tokens", "length")
        assert scheduler.status.finished < most


def test_a_client_with_many_requests_leaves_places_to_others(programs):
    with Scheduler(programs["cache"], Limits(rows=1, queue=16)) as scheduler:
        held = Held(scheduler)
        many = [ask(scheduler, (2,), client="a") for _ in range(14)]
        with pytest.raises(Overloaded) as caught:
            ask(scheduler, (2,), client="a")
        assert caught.value.waiting == 14
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
