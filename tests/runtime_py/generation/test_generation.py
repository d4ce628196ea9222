"""Generation: prompts in chunks, reasons to stop, room."""

from dataclasses import replace
from functools import partial
from threading import Thread

import numpy as np
import pytest
import torch
from adding_model import Totaling, write_chat
from counting_model import counting_program
from hand_built import affine_program, write_bundle

from kvc.runtime import (
    BadSetting,
    Busy,
    CacheOverflow,
    InputMismatch,
    NoPosition,
    Poisoned,
    PromptTooLong,
    Session,
    StateMismatch,
    UnknownName,
    generate,
    load,
)


@pytest.fixture
def session(tmp_path):
    with load(write_bundle(tmp_path / "g.kvc", counting_program())) as opened:
        yield opened.session()


def test_tokens_follow_the_prompt(session):
    run = generate(session, [7], max_tokens=4)
    assert list(run) == [8, 9, 10, 11]
    assert run.reason == "max_tokens"


def test_a_program_is_no_session(tmp_path):
    path = write_bundle(tmp_path / "g.kvc", counting_program())
    refused = pytest.raises(BadSetting, match="session: expected a Session")
    with load(path) as opened, refused:
        generate(opened, [7])


def test_a_long_prompt_is_run_in_chunks(session):
    run = generate(session, [3, 4, 5, 6, 7, 8, 9, 10, 11], max_tokens=2)
    assert (run.prefill.tokens_per_second, run.time_to_first_token) == (0, None)
    assert list(run) == [12, 13]
    assert run.prefill.tokens == 9
    assert run.decode.tokens == 1
    assert run.prefill.tokens_per_second > 0
    assert run.time_to_first_token >= run.prefill.seconds
    assert session.position == 10


def test_a_rest_shorter_than_the_least_chunk_goes_token_by_token(tmp_path):
    path = write_bundle(tmp_path / "g.kvc", counting_program(lower=4, upper=4))
    with load(path) as opened:
        session = opened.session()
        assert list(generate(session, [1, 2, 3, 4, 5, 6], max_tokens=1)) == [7]
        assert session.position == 6
        assert list(generate(session, [9], max_tokens=1)) == [10]


def test_a_stop_token_ends_it_and_is_not_handed_out(session):
    run = generate(session, [7], max_tokens=9, stop_tokens=[10])
    assert list(run) == [8, 9]
    assert run.reason == "stop"


def test_a_full_cache_ends_it(session):
    run = generate(session, list(range(14)), max_tokens=9)
    assert list(run) == [14, 15, 16]
    assert run.reason == "length"
    assert session.position == 16


def test_a_prompt_that_fills_the_cache_gives_one_token(session):
    run = generate(session, list(range(16)), max_tokens=9)
    assert list(run) == [16]
    assert run.reason == "length"


def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(session):
    with pytest.raises(CacheOverflow, match=r"17 tokens.* room for 16: it holds 0 of"):
        generate(session, list(range(17)), max_tokens=1)
    assert session.position == 0
    list(generate(session, [1, 2, 3], max_tokens=1))
    with pytest.raises(PromptTooLong) as caught:
        generate(session, list(range(14)), max_tokens=1)
    found = caught.value
    assert (found.start, found.count, found.room, found.capacity) == (3, 14, 13, 16)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2, 3]], np.ones((2, 3), int)])
def test_several_prompts_are_refused(session, prompt):
    with pytest.raises(BadSetting, match="no method of the role prefill takes"):
        generate(session, prompt)


@pytest.mark.parametrize("token", [-1, 2**63])
def test_a_prompt_token_that_no_model_has_is_refused(tmp_path, token):
    path = write_bundle(tmp_path / "g.kvc", counting_program())
    with load(path) as program, pytest.raises(BadSetting, match=f"got {token}"):
        generate(program.session(), [1, token], max_tokens=1)


def test_without_a_capacity_nothing_limits_it(tmp_path):
    path = write_bundle(tmp_path / "g.kvc", counting_program(capacity=None))
    with load(path) as opened:
        run = generate(opened.session(), [0], max_tokens=100)
        assert [token % 32 for token in run] == [(i + 1) % 32 for i in range(100)]


def test_no_tokens_asked_for_means_that_nothing_runs(session):
    run = generate(session, [1], max_tokens=0)
    assert list(run) == []
    assert run.reason == "max_tokens"
    assert session.position == 0


def test_the_reason_is_open_until_the_end(session):
    run = generate(session, [1], max_tokens=2)
    assert next(run) == 2
    assert run.reason is None
    assert next(run) == 3
    assert run.reason == "max_tokens"
    assert list(run) == []


def test_sampling_with_a_seed_is_repeatable(session):
    def sample(seed):
        session.reset()
        settings = {"temperature": 3.0, "top_k": 20, "seed": seed}
        return list(generate(session, [1], max_tokens=8, **settings))

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt": []},
        {"prompt": [1.5]},
        {"prompt": [True]},
        {"prompt": [[1], [2]]},
        {"prompt": np.array([[1, 2], [3, 4]])},
        {"prompt": None},
        {"history": ["a"]},
        {"max_tokens": -1},
        {"temperature": float("nan")},
    ],
)
def test_an_impossible_argument_is_named(session, settings):
    with pytest.raises(BadSetting, match=f"^{next(iter(settings))}: "):
        generate(session, **{"prompt": [1], "max_tokens": 1, **settings})
    assert session.position == 0


@pytest.mark.parametrize(
    "prompt", [(7,), np.array([7]), np.array([[7]], np.int32), torch.tensor([[7]])]
)
def test_a_prompt_is_a_row_of_whole_numbers(session, prompt):
    assert list(generate(session, prompt, max_tokens=2)) == [8, 9]


def test_a_token_that_the_model_does_not_have_is_refused_before_anything_runs(session):
    with pytest.raises(InputMismatch, match="tokens of 0 to 31, got token 32"):
        generate(session, [1, 2, 3, 4, 5, 32])
    assert session.position == 0


def test_a_second_thread_is_refused_while_a_token_is_made(session, monkeypatch):
    running, call, refused = generate(session, [1], max_tokens=2), Session.call, []

    def calling(*arguments):
        ask = partial(pytest.raises, Busy, next, running)
        thread = Thread(target=lambda: refused.append(ask()))
        thread.start()
        thread.join()
        return call(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "call", calling)
        next(running)
    assert len(refused) == 1
    assert len([*running]) == 1


def test_a_program_without_roles_is_refused(tmp_path):
    with (
        load(write_bundle(tmp_path / "a.kvc", affine_program())) as opened,
        pytest.raises(UnknownName, match="no method of the role 'prefill'"),
    ):
        generate(opened.session(), [1], max_tokens=1)


def test_of_a_model_for_another_task_this_is_said(tmp_path):
    made, arrays = affine_program()
    embedding = replace(made, metadata={"task": '"embed"'})
    with (
        load(write_bundle(tmp_path / "a.kvc", (embedding, arrays))) as opened,
        pytest.raises(UnknownName, match="for another task, 'embed': use kvc embed"),
    ):
        generate(opened.session(), [1], max_tokens=1)


def test_a_call_that_does_not_fit_overflows_before_it_runs(session):
    for _ in range(4):
        session.fill(np.zeros((1, 4), np.int64))
    with pytest.raises(CacheOverflow) as caught:
        session.step(np.zeros((1, 1), np.int64))
    assert (caught.value.start, caught.value.capacity) == (16, 16)


def test_what_the_session_does_not_hold_goes_before_the_next_prompt(session):
    first = generate(session, [3, 4, 5], max_tokens=3)
    assert first.pending == (3, 4, 5)
    assert next(first) == 6
    assert first.pending == (6,)
    assert list(first) == [7, 8]
    assert first.pending == (8,)
    assert session.position == 5
    second = generate(session, [*first.pending, 20], max_tokens=2)
    assert list(second) == [21, 22]
    assert session.position == 8


def test_a_stop_token_is_pending(session):
    run = generate(session, [7], stop_tokens=10)
    assert list(run) == [8, 9]
    assert run.pending == (10,)
    assert session.position == 3


def test_leaving_early_leaves_the_session_usable(session):
    for token in generate(session, [7]):
        if token == 9:
            break
    assert session.position == 2
    run = generate(session, [1])
    assert next(run) == 2
    run.close()
    run.close()
    assert list(run) == []
    assert run.reason is None
    assert run.tokens == [2]
    assert run.pending == (2,)
    assert list(generate(session, [4], max_tokens=1)) == [5]


def test_a_session_that_something_else_has_used_is_noticed(session):
    run = generate(session, [7])
    assert next(run) == 8
    session.rewind(1)
    with pytest.raises(StateMismatch, match=r"expected 1, where .* found 0;"):
        next(run)
    assert session.position == 0
    late = generate(session, [7])
    session.step(np.zeros((1, 1), np.int64))
    with pytest.raises(StateMismatch, match="something else has used the session"):
        next(late)


def test_two_generations_at_once_are_noticed_where_nothing_counts_tokens(tmp_path):
    with load(write_chat(tmp_path / "a.kvc", Totaling)) as program:
        session = program.session()
        with pytest.raises(NoPosition):
            session.position  # noqa: B018  # the property raises
        first, second = generate(session, [1]), generate(session, [1])
        next(first)
        with pytest.raises(StateMismatch, match="else has used the session meanwhile"):
            next(second)
        next(first)
        session.reset()
        with pytest.raises(StateMismatch, match="else has used the session meanwhile"):
            next(first)


def test_going_back_to_the_same_position_is_noticed(session):
    run = generate(session, [7])
    assert next(run) == 8
    session.rewind(1)
    session.step(np.array([[20]]))
    with pytest.raises(StateMismatch, match="else has used the session meanwhile"):
        next(run)


def test_without_max_tokens_it_goes_on_until_the_cache_is_full(session):
    run = generate(session, [0])
    assert list(run) == list(range(1, 17))
    assert run.reason == "length"


def test_max_length_counts_session_prompt_and_answer(session):
    list(generate(session, [1, 2, 3], max_tokens=1))
    run = generate(session, [9, 10], max_length=8)
    assert list(run) == [11, 12, 13]
    assert run.reason == "max_tokens"
    with pytest.raises(BadSetting, match=r"more than 8, the tokens up to .* got 8"):
        generate(session, [1], max_length=8)


def test_a_penalty_turns_away_from_what_was_there(session):
    # Of the next number the logit is 6, of all others 1.
    settings = {"max_tokens": 3, "repetition_penalty": 2.0}
    assert list(generate(session, [7, 8, 9], **settings)) == [10, 11, 12]
    session.reset()
    settings["repetition_penalty"] = 7.0
    assert list(generate(session, [9, 8, 7], **settings)) == [0, 1, 2]
    assert list(generate(session, [7], **settings, history=[8, 0])) == [1, 2, 3]


@pytest.fixture
def poisoned(tmp_path):
    """A session that a call has left half written."""
    with load(write_bundle(tmp_path / "g.kvc", counting_program())) as opened:
        session = opened.session()
        session._states.poisoned = "fill"
        yield session


def test_a_poisoned_session_is_refused_at_once(poisoned):
    with pytest.raises(Poisoned, match="a call of fill failed"):
        generate(poisoned, [1])


def test_a_failed_call_ends_it_and_leaves_the_session_as_it_was(session, monkeypatch):
    run = generate(session, [7])
    assert next(run) == 8
    with monkeypatch.context() as patched:
        patched.setattr(session, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(run)
    assert list(run) == []
    assert run.reason is None
    assert run.pending == (8,)
    assert list(generate(session, run.pending, max_tokens=2)) == [9, 10]


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_prompt_uses_each_prefill_for_what_it_takes(tmp_path):
    path = write_bundle(tmp_path / "g.kvc", counting_program(lower=4, upper=4, more=2))
    with load(path) as opened:
        session = opened.session()
        calls = []
        call = session.call
        session.call = lambda name, *args: (calls.append(name), call(name, *args))[1]
        assert list(generate(session, range(7), max_tokens=1)) == [7]
        assert calls == ["fill", "fill_2", "step"]
        assert list(generate(session, [7, 8], max_tokens=1)) == [9]
        assert calls[3:] == ["fill_2"]
