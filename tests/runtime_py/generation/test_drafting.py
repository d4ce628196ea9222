"""Speculative decoding: the same tokens as without a draft, in fewer calls."""

import gc

import numpy as np
import pytest
from daily import RARELY, every
from drafting_models import VOCAB, write_decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted_calls import interrupted
from made_once import MadeOnce

from kvc.runtime import StateMismatch, generate, load

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]  # more than a chunk


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The target, and models that guess: the same, a similar one, another one."""
    folder = tmp_path_factory.mktemp("drafts")
    noises = {"target": 0.0, "similar": 0.15, "other": 2.0}
    opened = MadeOnce(lambda name: load(write_decoder(folder / name, noises[name])))
    yield opened
    for program in opened.values():
        program.close()


@pytest.fixture
def target(programs):
    with programs["target"].session() as session:
        yield session


DRAFTS = ("target", "similar", "other")


@pytest.fixture(params=DRAFTS)
def draft(programs, request):
    with programs[request.param].session() as session:
        yield session


@pytest.fixture
def similar(programs):
    with programs["similar"].session() as session:
        yield session


def alone(programs, prompt, *, capacity=None, **options):
    """Return an ordinary generation that has ended, and its session."""
    session = programs["target"].session(capacity=capacity)
    run = generate(session, prompt, **options)
    list(run)
    return run, session


def assert_same(run, session, other, its_session):
    assert run.tokens == other.tokens
    assert (run.reason, run.pending) == (other.reason, other.pending)
    assert session.position == its_session.position
    for name, state in its_session.state.items():
        np.testing.assert_allclose(session.state[name], state, rtol=1e-3, atol=1e-4)


OPTIONS = {
    "to the end of the cache": {},
    "some tokens": {"max_tokens": 11},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "none": {"max_tokens": 0},
    "a length": {"max_length": 20},
    "a penalty": {"repetition_penalty": 1.3, "max_tokens": 30},
    "chance": {"temperature": 0.8, "seed": 4, "max_tokens": 30},
    "chance among few": {"temperature": 1.5, "top_k": 3, "seed": 1, "max_tokens": 30},
    "all of it": {
        "temperature": 1.2,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "seed": 2,
        "max_tokens": 30,
    },
}


def in_every_way():
    """Yield a draft, options and a number of guesses: each with each.

    Every day come those that have each two of them together once, a Latin square.
    """
    for row, name in enumerate(DRAFTS):
        for column, (title, options) in enumerate(OPTIONS.items()):
            for number, count in enumerate((1, 3, 7)):
                daily = (row + column + number) % 3 == 0
                marks = () if daily else RARELY
                label = f"{name}-{title}-{count}"
                yield pytest.param(name, options, count, marks=marks, id=label)


@pytest.mark.parametrize(
    ("draft", "options", "count"), [*in_every_way()], indirect=["draft"]
)
def test_a_draft_changes_nothing_but_the_calls(programs, target, draft, options, count):
    run = generate(target, PROMPT, draft=draft, draft_tokens=count, **options)
    list(run)
    assert_same(run, target, *alone(programs, PROMPT, **options))
    assert draft.position == target.position


def test_stop_tokens_end_it_wherever_they_come(programs, target, draft):
    tokens = alone(programs, PROMPT)[0].tokens
    for at, token in enumerate(tokens[:12]):
        for session in (target, draft):
            session.reset()
        run = generate(target, PROMPT, draft=draft, stop_tokens=[token])
        list(run)
        other = alone(programs, PROMPT, stop_tokens=[token])
        assert_same(run, target, *other)
        assert draft.position == target.position
        assert len(run.tokens) <= at
        assert run.reason == "stop"


def test_stop_strings_end_it_wherever_they_come(programs, target, draft):
    text = "".join(alone(programs, [1], max_tokens=1)[0].text())
    assert len(text) == 1
    tokens = alone(programs, PROMPT)[0].tokens
    for at in range(12):
        for session in (target, draft):
            session.reset()
        stop = bytes(tokens[at : at + 2]).decode()
        run = generate(target, PROMPT, draft=draft, stop_strings=[stop])
        list(run)
        assert_same(run, target, *alone(programs, PROMPT, stop_strings=[stop]))
        assert run.reason == "stop_string"
        assert draft.position == target.position


@pytest.mark.parametrize("capacities", [(16, 64), (23, 64), (64, 16), (64, 23)])
@pytest.mark.parametrize("name", ["target", "similar"])
def test_either_session_may_be_the_smaller(programs, name, capacities):
    target = programs["target"].session(capacity=capacities[0])
    draft = programs[name].session(capacity=capacities[1])
    run = generate(target, PROMPT, draft=draft, draft_tokens=5)
    list(run)
    other = alone(programs, PROMPT, capacity=capacities[0])
    assert_same(run, target, *other)
    assert run.reason == "length"
    assert draft.position <= min(capacities)
    assert run.drafted > 0


def test_a_draft_without_room_for_the_prompt_guesses_nothing(programs, target):
    draft = programs["target"].session(capacity=16)
    prompt = [*PROMPT, *PROMPT]
    run = generate(target, prompt, draft=draft, max_tokens=9)
    list(run)
    assert_same(run, target, *alone(programs, prompt, max_tokens=9))
    assert (run.drafted, draft.position) == (0, 0)
    again = generate(target, [*run.pending, 1], draft=draft, max_tokens=4)
    assert len(list(again)) == 4
    assert draft.position == 0


def test_the_target_as_its_own_draft_is_always_right(programs, target):
    draft = programs["target"].session()
    run = generate(target, PROMPT, draft=draft, draft_tokens=4, max_tokens=31)
    calls = []
    call = target.call
    target.call = lambda name, *args: (calls.append(name), call(name, *args))[1]
    assert len(list(run)) == 31
    assert (run.drafted, run.accepted, run.acceptance) == (24, 24, 1.0)
    assert calls == ["prefill", "prefill", *["prefill_all"] * 6]


def test_a_poor_draft_is_mostly_wrong(programs, target):
    draft = programs["other"].session()
    run = generate(target, PROMPT, draft=draft, max_tokens=31)
    list(run)
    assert run.drafted > 60
    assert run.accepted < 20
    assert run.acceptance == run.accepted / run.drafted


def test_without_a_draft_nothing_is_drafted(target):
    run = generate(target, PROMPT, max_tokens=3)
    list(run)
    assert (run.drafted, run.accepted, run.acceptance) == (0, 0, 0.0)


def test_turns_go_on_with_the_same_two(programs, target, draft):
    lone = programs["target"].session()
    pending, other = [], []
    for more in ([7, 1], [3], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1], [0]):
        one = generate(target, [*pending, *more], draft=draft, max_tokens=6)
        two = generate(lone, [*other, *more], max_tokens=6)
        assert list(one) == list(two)
        assert_same(one, target, two, lone)
        assert draft.position == target.position
        pending, other = one.pending, two.pending


@every(3, "count", "way", "draft")
@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("way", ["close", "break", "drop", "look"])
def test_leaving_early_leaves_both_as_without_a_draft(
    programs, target, draft, way, count
):
    """Also where the session is looked at while the generation is kept."""
    lone = programs["target"].session()
    other = generate(lone, PROMPT, max_tokens=20)
    run = generate(target, PROMPT, draft=draft, draft_tokens=4, max_tokens=20)
    for _ in range(count):
        assert next(run) == next(other)
    pending = run.pending
    if way == "close":
        run.close()
    elif way == "break":
        for token in run:
            assert token == next(other)
            break
        pending = run.pending
    elif way == "drop":
        tokens, reason, run = run.tokens, run.reason, None
        gc.collect()
        assert (tokens, reason) == (other.tokens, None)
    assert pending == other.pending
    assert target.position == lone.position
    assert draft.position == target.position
    if way == "look":
        assert list(run) == list(other)
        assert_same(run, target, other, lone)
        pending = run.pending
    one = generate(target, [*pending, 1], draft=draft, max_tokens=5)
    two = generate(lone, [*other.pending, 1], max_tokens=5)
    assert list(one) == list(two)


@every(2, "at", "which")
@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("which", ["target", "draft"])
def test_an_interrupted_call_leaves_both_in_line(programs, target, similar, which, at):
    """Before it has run, and when it has run and nobody has noted it."""
    session = {"target": target, "draft": similar}[which]
    for late in (False, True):
        for each in (target, similar):
            each.reset()
        run = generate(target, PROMPT, draft=similar, max_tokens=50)
        with pytest.raises(KeyboardInterrupt), interrupted(session, at, late):
            list(run)
        # What was handed out and is not pending is what the session holds.
        text = [*PROMPT, *run.tokens]
        held = int(target.position[0])
        assert text[held:] == list(run.pending)
        assert similar.position <= target.position
        again = generate(
            target, run.pending, draft=similar, history=text[:held], max_tokens=8
        )
        other = alone(programs, text, max_tokens=8)[0]
        assert list(again) == other.tokens


def test_forks_of_both_go_on_by_themselves(programs, target, similar):
    run = generate(target, PROMPT, draft=similar, max_tokens=25)
    some = [next(run) for _ in range(4)]
    with target.fork() as one, similar.fork() as two:
        assert one.position == two.position == len(PROMPT) + 3
        more = generate(one, run.pending, draft=two, max_tokens=21)
        expected = alone(programs, PROMPT, max_tokens=25)[0].tokens
        assert some + list(more) == expected
        assert more.drafted > 0
    assert some + list(run) == expected


def test_a_draft_that_was_used_is_noticed(target, similar):
    run = generate(target, PROMPT, draft=similar, max_tokens=30)
    next(run)
    similar.decode(np.array([[1]]))
    with pytest.raises(StateMismatch, match="has used the draft meanwhile"):
        list(run)
    late = generate(target, run.pending, draft=similar, max_tokens=3)
    similar.reset()
    with pytest.raises(StateMismatch, match="has used the draft meanwhile"):
        next(late)


def test_a_target_that_was_used_is_noticed_and_left_alone(target, similar):
    run = generate(target, PROMPT, draft=similar, max_tokens=30)
    next(run)
    next(run)
    target.decode(np.array([[1]]))
    position = target.position
    with pytest.raises(StateMismatch, match="has used the session meanwhile"):
        list(run)
    assert target.position == position
    target.rewind(1)
    second = generate(target, [1, 2], draft=similar, max_tokens=30)
    third = generate(target, [1, 2], draft=similar, max_tokens=3)
    assert len(list(third)) == 3
    with pytest.raises(StateMismatch, match="has used the draft meanwhile"):
        next(second)


def test_closed_sessions_are_no_trouble(programs):
    with programs["target"].session() as one, programs["similar"].session() as two:
        run = generate(one, PROMPT, draft=two, max_tokens=30)
        next(run)
    run.close()
    assert run.tokens


def test_a_draft_may_come_late_and_learn_from_the_history(programs, target, similar):
    first = generate(target, PROMPT, max_tokens=5)
    list(first)
    history = [*PROMPT, *first.tokens[:-1]]
    run = generate(target, first.pending, draft=similar, history=history, max_tokens=20)
    expected = alone(programs, PROMPT, max_tokens=25)[0].tokens
    assert first.tokens + list(run) == expected
    assert run.acceptance > 0.2
    assert similar.position == target.position


def test_a_draft_that_holds_more_goes_back(programs, target, similar):
    run = generate(target, PROMPT, draft=similar, max_tokens=9)
    tokens = list(run)
    target.rewind(5)
    again = generate(target, tokens[3:4], draft=similar, max_tokens=5)
    assert list(again) == tokens[4:]
    assert again.acceptance == run.acceptance or again.drafted
    assert similar.position == target.position


@settings(max_examples=25, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    count=st.integers(1, 7),
    most=st.integers(1, 40),
)
def test_every_token_is_the_likeliest_of_its_prefix(programs, prompt, count, most):
    """By logits that the target gives token by token, within their last bits."""
    target, draft = (programs[name].session() for name in ("target", "similar"))
    run = generate(target, prompt, draft=draft, draft_tokens=count, max_tokens=most)
    lone = programs["target"].session()
    logits = lone.prefill(np.array([prompt[:8]]))
    for token in prompt[8:]:
        logits = lone.decode(np.array([[token]]))
    for token in run:
        assert logits[0, token] >= logits.max() - 1e-4 * np.ptp(logits)
        if lone.position < 64:
            logits = lone.decode(np.array([[token]]))
    for session in (target, draft, lone):
        session.close()
