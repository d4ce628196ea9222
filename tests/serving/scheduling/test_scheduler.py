"""Many requests at once get the tokens that each gets alone, whatever the others do."""

import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from asked_requests import SHORT, Heard, alone, ask, assert_as_alone
from daily import only
from drafting_rows import VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st
from made_once import MadeOnce

from kvc.runtime import (
    BadSetting,
    Closed,
    InputMismatch,
    PromptTooLong,
    generate,
    load,
)
from kvc.runtime.generation import GenerationSettings, settings_of
from kvc.schema.errors import Overloaded
from kvc.serving.scheduling import Limits, Request, Scheduler

KINDS = ("cache", "rings", "sums", "one row")
PROMPT = tuple(np.random.default_rng(0).integers(0, VOCAB, 25).tolist())


@pytest.fixture(scope="module")
def programs(bundles):
    made = MadeOnce(lambda kind: load(bundles[kind]))
    yield made
    for program in made.values():
        program.close()


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_run_together_are_as_alone(programs, kind):
    program = programs[kind]
    prompts = [PROMPT[: 3 + 4 * n] for n in range(6)] + [(9, 8, 7), (1,)]
    with Scheduler(program, Limits(rows=3)) as scheduler:
        heard = [ask(scheduler, prompt) for prompt in prompts]
        for one, prompt in zip(heard, prompts, strict=True):
            assert_as_alone(program, one, prompt)
        status = scheduler.status
    assert (status.finished, status.failed, status.running) == (len(prompts), 0, 0)
    assert status.tokens == sum(len(one.tokens) for one in heard)


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([(), PROMPT[:9], PROMPT[:14], tuple(range(12))]),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
        st.sampled_from([0.0, 0.9]),
        st.integers(0, 9),
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@only(kind=["cache", "sums"])
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
@given(
    requests=REQUESTS,
    rows=st.integers(1, 4),
    kept=st.sampled_from([0, 40_000, 1 << 30]),
    stall=st.sampled_from([0.0, 0.2]),
    waits=st.booleans(),
)
def test_random_requests_are_as_alone(
    programs, kind, requests, rows, kept, stall, waits
):
    program = programs[kind]
    limits = Limits(rows=rows, remembered_nbytes=kept, stall=stall)
    with Scheduler(program, limits) as scheduler:
        asked = []
        for begins, rest, temperature, count, seed, leaves in requests:
            prompt = (*begins, *rest)
            chosen = GenerationSettings(
                max_tokens=count, temperature=temperature, seed=seed, stop_tokens=(5,)
            )
            one = ask(scheduler, prompt, chosen)
            if leaves:
                one.ticket.cancel()
            if waits:
                assert one.last.ending
            asked.append((one, prompt, chosen, leaves))
        for one, prompt, chosen, leaves in asked:
            expected, reason = alone(program, prompt, chosen)
            ended = one.last.ending
            if leaves and ended == "cancelled":
                assert one.tokens == expected[: len(one.tokens)]
            else:
                assert (ended, one.tokens) == (reason, expected)


@pytest.mark.parametrize("kind", ["cache", "one row"])
def test_what_an_earlier_text_has_is_not_read_again(programs, kind):
    program = programs[kind]
    with Scheduler(program, Limits(rows=2)) as scheduler:
        first = ask(scheduler, PROMPT)
        assert first.last.ending
        turn = (*PROMPT, *first.tokens, 1, 2, 3)
        second = ask(scheduler, turn)
        assert second.last.reused >= len(PROMPT) + len(first.tokens) - 1
        assert_as_alone(program, second, turn)
        branch = (*PROMPT[:12], (PROMPT[12] + 1) % VOCAB, 1)  # goes back in the text
        third = ask(scheduler, branch)
        assert third.last.reused == 12
        assert_as_alone(program, third, branch)


def test_a_text_that_cannot_go_back_is_parked_at_the_end_of_its_prompt(programs):
    program = programs["sums"]
    prompt = tuple(np.random.default_rng(1).integers(6, VOCAB, 40).tolist())
    with Scheduler(program, Limits(rows=2)) as scheduler:
        first = ask(scheduler, prompt)
        assert first.last.ending
        turn = (*prompt, 1, 2, 3)  # without what was answered
        second = ask(scheduler, turn)
        assert second.last.reused in (0, len(prompt))
        assert_as_alone(program, second, turn)


def test_several_answers_to_a_prompt_read_it_once(programs):
    program = programs["cache"]
    prompt = (*PROMPT, *PROMPT)
    with Scheduler(program, Limits(rows=4)) as scheduler:
        chosen = [
            GenerationSettings(max_tokens=5, temperature=1.0, seed=n) for n in range(4)
        ]
        heard = [ask(scheduler, prompt, one) for one in chosen]
        for one, settings_of_one in zip(heard, chosen, strict=True):
            assert_as_alone(program, one, prompt, settings_of_one)
        assert scheduler.status.prompt_tokens <= 50 + 4
        assert sorted(one.last.reused for one in heard)[1:] == [49] * 3


def test_parked_texts_stay_within_their_bytes_and_all_within_the_limit(programs):
    program = programs["cache"]
    with Scheduler(program) as scheduler:
        one = scheduler.foretold_nbytes(64)
    limits = Limits(rows=4, nbytes=3 * one, remembered_nbytes=2 * one)
    with Scheduler(program, limits) as scheduler:
        heard = [
            ask(scheduler, tuple(np.roll(PROMPT, n)), GenerationSettings(max_tokens=30))
            for n in range(9)
        ]
        for number, text in enumerate(heard):
            assert_as_alone(
                program,
                text,
                np.roll(PROMPT, number).tolist(),
                GenerationSettings(max_tokens=30),
            )
            assert scheduler.status.nbytes <= limits.nbytes
        assert scheduler.status.remembered_nbytes <= limits.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_request_leaves_its_row_to_others(programs, kind):
    program = programs[kind]
    endless = GenerationSettings(max_tokens=50)
    with Scheduler(program, Limits(rows=1)) as scheduler:
        first = ask(scheduler, PROMPT, endless)
        assert first.first.wait(60)
        waits, last = ask(scheduler, PROMPT), ask(scheduler, PROMPT[:4])
        waits.ticket.cancel()
        first.ticket.cancel()
        assert first.last.ending in ("cancelled", "max_tokens", "length")
        assert waits.last.ending == "cancelled"
        assert_as_alone(program, last, PROMPT[:4])
        first.ticket.cancel()  # without effect
        assert len([u for u in first.updates if u.ending]) == 1


def test_a_request_ends_when_its_time_is_over(programs):
    with Scheduler(programs["cache"], Limits(rows=1)) as scheduler:
        late = ask(scheduler, PROMPT, GenerationSettings(max_tokens=30), seconds=0.0)
        assert late.last.ending == "cancelled"


def test_too_many_requests_are_refused_and_impossible_ones_at_once(programs):
    program = programs["cache"]
    with Scheduler(program, Limits(rows=1, queue=2)) as scheduler:
        held = threading.Event()
        first = Heard()
        scheduler.submit(Request(PROMPT, SHORT), lambda u: (held.wait(30), first(u)))
        while scheduler.status.waiting:  # it has a row
            time.sleep(0.001)
        waiting = [ask(scheduler, PROMPT) for _ in range(2)]
        with pytest.raises(Overloaded) as caught:
            ask(scheduler, PROMPT)
        assert caught.value.waiting == 2
        assert caught.value.seconds >= 1
        assert scheduler.status.refused == 1
        with pytest.raises(BadSetting, match="at least one token"):
            ask(scheduler, ())
        with pytest.raises(InputMismatch, match="token 99"):
            ask(scheduler, (99,))
        with pytest.raises(PromptTooLong):
            ask(scheduler, (1,) * 64)
        with pytest.raises(BadSetting, match="max_length"):
            ask(scheduler, PROMPT, GenerationSettings(max_length=4))
        held.set()
        assert all(one.last.ending == "max_tokens" for one in (first, *waiting))
    with pytest.raises(Closed):
        ask(scheduler, PROMPT)


def test_clients_take_turns(programs):
    order = []
    with Scheduler(programs["cache"], Limits(rows=1)) as scheduler:
        held, over = threading.Event(), threading.Semaphore(0)
        scheduler.submit(Request(PROMPT, SHORT), lambda _: held.wait(30))
        while scheduler.status.waiting:
            time.sleep(0.001)

        def listener(name):
            def hear(update):
                if update.ending:
                    order.append(name)
                    over.release()

            return hear

        for name in ("a1", "a2", "a3", "b1", "b2"):
            asked = Request((ord(name[1]) - 40,), SHORT, client=name[0])
            scheduler.submit(asked, listener(name))
        held.set()
        for _ in range(5):
            assert over.acquire(timeout=60)
    assert order == ["a1", "b1", "a2", "b2", "a3"]


def test_a_failed_request_does_not_end_others(programs):
    program = programs["cache"]

    def spoil(_, logits):
        return logits * np.nan

    spoiled = settings_of({}, {"max_tokens": 6, "processors": [spoil]})
    with Scheduler(program, Limits(rows=4)) as scheduler:
        good = ask(scheduler, PROMPT)
        bad = ask(scheduler, (1, 2), spoiled)
        other = ask(scheduler, (4, 5))
        assert bad.last.ending == "failed"
        assert isinstance(bad.last.error, BadSetting)
        assert_as_alone(program, good, PROMPT)
        assert_as_alone(program, other, (4, 5))
        assert scheduler.status.failed == 1


def test_a_defect_ends_the_requests_that_met_it_alone(programs, monkeypatch):
    program = programs["cache"]
    with Scheduler(program, Limits(rows=2)) as scheduler:
        rows = scheduler._turns.rows
        step, broken = rows.step, [True]

        def fails_once(tokens):
            if broken.pop() if broken else False:
                raise ZeroDivisionError("a defect")
            return step(tokens)

        monkeypatch.setattr(rows, "step", fails_once)
        first = ask(scheduler, PROMPT)
        assert first.last.ending == "failed"
        assert "ZeroDivisionError" in str(first.last.error)
        assert_as_alone(program, ask(scheduler, PROMPT), PROMPT)


@pytest.mark.parametrize("place", ["_begin", "_read", "_close_up"])
def test_a_defect_anywhere_leaves_a_scheduler_that_answers(
    programs, monkeypatch, place
):
    program = programs["cache"]
    with Scheduler(program, Limits(rows=2)) as scheduler:
        turns = scheduler._turns
        owner = turns._admission if place == "_begin" else turns
        name = "begin" if place == "_begin" else place
        plain, broken = getattr(owner, name), [True]

        def fails_once(*given):
            busy = len(turns.waiting) or turns._admission.jobs
            if busy and broken:
                broken.clear()
                raise ZeroDivisionError("a defect")
            return plain(*given)

        monkeypatch.setattr(owner, name, fails_once)
        first = ask(scheduler, PROMPT)
        assert first.last.ending in ("failed", "max_tokens")
        assert not broken
        assert_as_alone(program, ask(scheduler, PROMPT), PROMPT)


def test_closing_ends_what_runs_or_lets_it_finish(programs):
    program = programs["cache"]
    scheduler = Scheduler(program, Limits(rows=1))
    heard = [ask(scheduler, PROMPT, GenerationSettings(max_tokens=30)) for _ in "123"]
    scheduler.close(seconds=60)
    assert [one.last.ending for one in heard] == ["max_tokens"] * 3, heard[2].last.error
    scheduler = Scheduler(program, Limits(rows=1))
    heard = [ask(scheduler, PROMPT, GenerationSettings(max_tokens=30)) for _ in "123"]
    scheduler.close()
    scheduler.close()
    endings = {one.last.ending for one in heard}
    assert "cancelled" in endings
    assert endings <= {"cancelled", "max_tokens"}


def test_no_answer_waits_for_the_whole_prompt_of_another(programs):
    """With no time to spare, a long prompt is read 16 tokens at a time."""
    program = programs["cache"]
    with Scheduler(program, Limits(rows=2, stall=0.0)) as scheduler:
        rows, calls = scheduler._turns.rows, []
        read, step = rows.read, rows.step
        rows.read = lambda row, tokens: (calls.append(len(tokens)), read(row, tokens))[
            1
        ]
        rows.step = lambda tokens: (calls.append("step"), step(tokens))[1]
        first = Heard()
        slow = lambda update: (time.sleep(0.005), first(update))  # noqa: E731
        scheduler.submit(Request((1, 2), GenerationSettings(max_tokens=40)), slow)
        assert first.first.wait(60)
        calls.clear()
        second = ask(scheduler, (*PROMPT[::-1], *PROMPT))
        assert second.last.ending
        reads = [n for n, one in enumerate(calls) if one != "step"]
        assert all("step" in calls[a:b] for a, b in pairwise(reads))
        assert max(one for one in calls if one != "step") <= 16
        assert first.last.ending == "max_tokens"


def test_updates_come_no_more_often_than_asked(programs):
    program, many = programs["cache"], GenerationSettings(max_tokens=40)
    with Scheduler(program, Limits(interval=1000.0)) as scheduler:
        heard = ask(scheduler, PROMPT[:4], many)
        assert_as_alone(program, heard, PROMPT[:4], many)
    assert [len(update.tokens) for update in heard.updates] == [1, 39]


def test_log_probabilities_are_those_of_generate(programs):
    program = programs["cache"]
    wanted = replace(SHORT, logprobs=2)
    with Scheduler(program) as scheduler:
        heard = ask(scheduler, PROMPT, wanted)
        assert heard.last.ending
        found = [one for update in heard.updates for one in update.logprobs]
    with program.session() as session:
        run = generate(session, list(PROMPT), max_tokens=6, logprobs=2)
        list(run)
    assert [one.token for one in found] == [one.token for one in run.logprobs]
    assert np.allclose(
        [one.logprob for one in found], [one.logprob for one in run.logprobs], atol=1e-5
    )
