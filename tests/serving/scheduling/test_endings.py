"""Each accepted request gets exactly one last update, whatever happens meanwhile."""

import logging
import threading
import time

import numpy as np
import pytest
from asked_requests import SHORT, Heard, ask, assert_as_alone
from drafting_rows import VOCAB

from kvc.runtime import BadTokenizer, Closed, OutOfMemory, load
from kvc.runtime.generation import GenerationSettings
from kvc.schema.errors import Poisoned
from kvc.serving.scheduling import Limits, Request, Scheduler
from kvc.serving.scheduling.job import Job

PROMPT = tuple(np.random.default_rng(0).integers(6, VOCAB, 25).tolist())
LONG = GenerationSettings(max_tokens=30)


@pytest.fixture
def path(bundles):
    return bundles["cache"]


@pytest.fixture
def program(path):
    with load(path) as opened:
        yield opened


def endings_of(heard):
    return [update.ending for update in heard.updates if update.ending]


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_listener_that_raises_cancels_its_request_alone(program, number, monkeypatch):
    heard, logged = Heard(), []
    log = logging.getLogger("kvc.serving.scheduling.job")
    monkeypatch.setattr(log, "error", lambda *said: logged.append(said[1]))

    def raises(update):
        heard(update)
        if len(heard.updates) == number + 1 or update.ending:
            raise ZeroDivisionError("of the listener")

    with Scheduler(program, Limits(rows=3)) as scheduler:
        other = ask(scheduler, PROMPT, LONG)
        scheduler.submit(Request(PROMPT[::-1], SHORT), raises)
        assert heard.last.ending in ("cancelled", "max_tokens")
        assert_as_alone(program, other, PROMPT, LONG)
        assert_as_alone(program, ask(scheduler, PROMPT[3:]), PROMPT[3:])
    assert len(endings_of(heard)) == 1
    assert logged[:1] == ["ZeroDivisionError"]


class BrokenTokenizer:
    """Fails at a token."""

    def __init__(self, after):
        self._left = after

    def stream(self, after=()):
        return self

    def push(self, _):
        self._left -= 1
        if self._left < 0:
            raise BadTokenizer(file="m.kvc", reason="it is broken")
        return "a"

    def finish(self):
        return ""


@pytest.mark.parametrize("after", [0, 3])
def test_a_tokenizer_that_fails_ends_its_request_alone(program, after):
    with Scheduler(program, Limits(rows=3)) as scheduler:
        other = ask(scheduler, PROMPT, LONG)
        broken = ask(scheduler, (7, 8, 9), tokenizer=BrokenTokenizer(after))
        assert broken.last.ending == "failed"
        assert isinstance(broken.last.error, BadTokenizer)
        assert endings_of(broken) == ["failed"]
        assert_as_alone(program, other, PROMPT, LONG)


def test_a_program_that_is_closed_ends_all_requests(path):
    program = load(path)
    scheduler = Scheduler(program, Limits(rows=1))
    held, first = threading.Event(), Heard()
    scheduler.submit(Request(PROMPT, LONG), lambda u: (first(u), held.wait(30)))
    assert first.first.wait(60)
    waits = [ask(scheduler, PROMPT[n:]) for n in range(3)]
    closes = threading.Thread(target=program.close)
    closes.start()
    held.set()
    for one in (first, *waits):
        assert one.last.ending == "failed"
        assert isinstance(one.last.error, Closed)
        assert len(endings_of(one)) == 1
    closes.join(60)
    scheduler._thread.join(60)
    with pytest.raises(Closed):
        ask(scheduler, PROMPT)
    assert scheduler.status.running == 0
    scheduler.close()


def test_a_call_that_spoils_the_states_ends_what_runs_not_what_waits(
    program, monkeypatch
):
    with Scheduler(program, Limits(rows=2, remembered_nbytes=0)) as scheduler:
        session, broken = scheduler._turns.rows._session, [True]
        call = session._call

        def spoils(name, args, kwargs, rows):
            made = call(name, args, kwargs, rows)
            if name == "decode" and broken and broken.pop():
                session._states.poisoned = name
                raise Poisoned(method=name)
            return made

        held, first = threading.Event(), Heard()
        scheduler.submit(Request(PROMPT, LONG), lambda u: (held.wait(30), first(u)))
        others = [ask(scheduler, PROMPT[n:]) for n in (1, 2, 3)]
        monkeypatch.setattr(session, "_call", spoils)
        held.set()
        assert first.last.ending == "failed"
        endings = [one.last.ending for one in others]
        assert endings[1:] == ["max_tokens"] * 2
        for number in (2, 3):
            assert_as_alone(program, others[number - 1], PROMPT[number:])


def test_no_room_to_park_a_text_fails_no_request(program, monkeypatch):
    with Scheduler(program, Limits(rows=1)) as scheduler:
        assert ask(scheduler, PROMPT).last.ending

        def full(row):
            raise OutOfMemory(what="states", nbytes=1, reason="none is left")

        monkeypatch.setattr(scheduler._turns.rows, "twin", full)
        for prompt in (PROMPT[::-1], PROMPT[4:]):
            assert_as_alone(program, ask(scheduler, prompt), prompt)


def test_the_status_can_be_asked_for_while_a_request_begins(program, monkeypatch):
    with Scheduler(program, Limits(rows=2)) as scheduler:
        begin, found = Job.begin, []

        def begins(job, *given):
            found.append(scheduler.status.running)
            begin(job, *given)
            found.append(scheduler.status.running)

        monkeypatch.setattr(Job, "begin", begins)
        assert ask(scheduler, PROMPT).last.ending == "max_tokens"
    assert found == [0, 0]


def test_the_status_can_be_asked_for_at_any_time(program):
    with Scheduler(program, Limits(rows=4)) as scheduler:
        over, problems = threading.Event(), []

        def watches():
            while not over.is_set():
                try:
                    found = scheduler.status
                    assert found.running <= found.rows
                except Exception as error:
                    problems.append(error)

        watcher = threading.Thread(target=watches)
        watcher.start()
        heard = [ask(scheduler, PROMPT[n % 20 :]) for n in range(60)]
        assert all(one.last.ending for one in heard)
        over.set()
        watcher.join()
    assert not problems


def test_what_has_ended_is_counted_when_its_listener_hears_so(program):
    with Scheduler(program, Limits(rows=2)) as scheduler:
        found = []

        def hear(update):
            if update.ending:
                found.append(scheduler.status)

        for number in range(4):
            before = len(found)
            scheduler.submit(Request(PROMPT[number:], SHORT), hear)
            while len(found) == before:
                time.sleep(0.001)
        assert [(one.finished, one.running) for one in found] == [
            (1, 0), (2, 0), (3, 0), (4, 0)
        ]  # fmt: skip


def test_a_request_can_be_made_by_a_listener_and_close_called(program):
    scheduler, second = Scheduler(program, Limits(rows=1)), Heard()

    def asks(update):
        if update.ending:
            scheduler.submit(Request(PROMPT, SHORT), closes)

    def closes(update):
        second(update)
        scheduler.close()

    scheduler.submit(Request(PROMPT, SHORT), asks)
    assert second.last.ending == "cancelled"
    scheduler.close()
    assert endings_of(second) == ["cancelled"]


def test_a_failed_step_of_one_session_ends_its_request_alone(bundles, monkeypatch):
    with load(bundles["one row"]) as program, Scheduler(program) as scheduler:
        rows, broken = scheduler._turns.rows, [True]
        step = rows.step

        def fails_once(tokens):
            if 1 in tokens and broken and broken.pop():
                raise OutOfMemory(what="states", nbytes=1, reason="none is left")
            return step(tokens)

        monkeypatch.setattr(rows, "step", fails_once)
        held = threading.Event()
        first, others = Heard(), []
        scheduler.submit(Request(PROMPT[:5], LONG), lambda u: (held.wait(30), first(u)))
        others = [ask(scheduler, PROMPT[n : n + 4]) for n in (6, 12)]
        held.set()
        endings = [one.last.ending for one in (first, *others)]
        assert endings == ["max_tokens", "failed", "max_tokens"]
        assert isinstance(others[0].last.error, OutOfMemory)
        assert_as_alone(program, others[1], PROMPT[12:16])
