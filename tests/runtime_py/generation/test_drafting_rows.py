"""Drafts and prompt lookup for rows of a batch: each row as alone, without a draft."""

from contextlib import ExitStack

import numpy as np
import pytest
from daily import every
from drafting_rows import VOCAB, write_checked
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted_calls import interrupted
from made_once import MadeOnce

from kvc.runtime import BadSetting, UnusableLogits, generate, load

PROMPTS = [[3], [1, 2, 3, 4, 5, 3, 1, 2], list(range(11)) * 2]
KINDS = ("cache", "rings", "sums")
WAYS = ("prompt", "same", "similar", "other")  # by which tokens are guessed
NOISES = {"same": 0.0, "similar": 0.1, "other": 2.0}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Models by their kind and how much they differ from the target."""
    folder = tmp_path_factory.mktemp("rows")

    def opened(key):
        kind, noise, *least = key
        name = folder / f"{kind}-{noise}-{len(least)}.kvc"
        return load(write_checked(name, kind, noise, 12, *least))

    made = MadeOnce(opened)
    yield made
    for program in made.values():
        program.close()


@pytest.fixture
def open_rows(programs):
    """Open a session of a model, with copies for rewinds."""
    with ExitStack() as stack:

        def open_session(kind, noise=0.0, rows=3, **options):
            options = {"snapshots": 4, **options}
            program = programs[kind, noise]
            return stack.enter_context(program.session(batch=rows, **options))

        yield open_session


def alone(programs, kind, prompts, seed=0, **options):
    """Return generations of single prompts that have ended."""
    runs = []
    for row, prompt in enumerate(prompts):
        with programs[kind, 0.0].session() as session:
            runs.append(generate(session, prompt, seed=seed + row, **options))
            list(runs[-1])
    return runs


def assert_same(run, session, others, prompts):
    """Check that rows are those of single prompts, and that the session holds them."""
    assert list(run.tokens) == [one.tokens for one in others]
    assert list(run.reason) == [one.reason for one in others]
    assert list(run.pending) == [one.pending for one in others]
    held = [
        len(prompt) + len(one.tokens) - (one.reason != "stop")
        for prompt, one in zip(prompts, others, strict=True)
    ]
    assert session.position.tolist() == held


def generated(session, prompts, way, draft, **options):
    return generate(
        session, prompts, draft="prompt" if way == "prompt" else draft, **options
    )


OPTIONS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"temperature": st.sampled_from([0.7, 1.5])}),
    st.fixed_dictionaries(
        {"temperature": st.just(1.2), "top_k": st.just(4), "min_p": st.just(0.01)}
    ),
    st.just({"repetition_penalty": 1.3}),
    st.just({"no_repeat_ngram_size": 3, "logit_bias": {3: 2.0}}),
    st.just({"logprobs": 1}),
)
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=16)


@every(4, "way", "kind")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(
    prompts=st.lists(prompts, min_size=3, max_size=3),
    options=OPTIONS,
    seed=st.integers(0, 9),
    most=st.integers(1, 30),
    count=st.sampled_from([None, 1, 3]),
    stops=st.lists(st.integers(0, VOCAB - 1), max_size=2),
)
def test_rows_are_as_alone(
    programs, kind, way, prompts, options, seed, most, count, stops
):
    wanted = {**options, "max_tokens": most, "stop_tokens": stops}
    others = alone(programs, kind, prompts, seed, **wanted)
    target = programs[kind, 0.0].session(batch=3, snapshots=1)
    with (
        target,
        programs[kind, NOISES.get(way, 0)].session(batch=3, snapshots=4) as draft,
    ):
        run = generated(
            target, prompts, way, draft, seed=seed, draft_tokens=count, **wanted
        )
        list(run)
        assert_same(run, target, others, prompts)
        for row, other in enumerate(others):
            found = [one.logprob for one in run.logprobs[row]]
            expected = [one.logprob for one in other.logprobs]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        if way != "prompt":
            assert draft.position.tolist() == target.position.tolist()


@every(2, "way", "kind")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_turns_go_on_in_each_row(programs, open_rows, kind, way):
    target, draft = open_rows(kind), open_rows(kind, NOISES.get(way, 0.0))
    lone = open_rows(kind)
    pending = other = [()] * 3
    for more in (PROMPTS, [[1], [2, 3], [4, 5, 6]], [[7]] * 3):
        turns = [
            [[*before, *new] for before, new in zip(held, more, strict=True)]
            for held in (pending, other)
        ]
        one = generated(target, turns[0], way, draft, max_tokens=7)
        two = generate(lone, turns[1], max_tokens=7)
        assert list(one) == list(two)
        assert target.position.tolist() == lone.position.tolist()
        pending, other = one.pending, two.pending


def test_a_draft_that_is_always_right_saves_calls(open_rows):
    target, draft = open_rows("cache"), open_rows("cache")
    run = generate(target, PROMPTS, draft=draft, draft_tokens=4, max_tokens=31)
    calls, call = [], target.call
    target.call = lambda name, *args, **rows: (
        calls.append((name, args[0].shape[1])) or call(name, *args, **rows)
    )
    list(run)
    assert (run.drafted, run.accepted, run.acceptance) == (72, 72, 1.0)
    assert calls == [("prefill", 11), ("prefill", 11), *[("prefill_all", 5)] * 6]


def test_rows_with_right_guesses_get_ahead_of_others(programs, open_rows):
    """As many calls as the row with the worst guesses needs alone, or few more."""
    target, draft = open_rows("cache"), open_rows("cache", NOISES["similar"])
    most = 0
    for prompt in PROMPTS:
        with (
            programs["cache", 0.0].session() as one,
            programs["cache", NOISES["similar"]].session() as two,
        ):
            run = generate(one, prompt, draft=two, max_tokens=40)
            most = max(most, calls_of(one, run))
    run = generate(target, PROMPTS, draft=draft, max_tokens=40)
    assert calls_of(target, run) <= most + 3


def calls_of(session, run):
    count, call = 0, session.call

    def counted(*args, **named):
        nonlocal count
        count += 1
        return call(*args, **named)

    session.call = counted
    list(run)
    del session.call
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_has_ended_is_not_touched(programs, open_rows, kind):
    target, draft = open_rows(kind), open_rows(kind, NOISES["similar"])
    first = alone(programs, kind, PROMPTS, max_tokens=3)[0].tokens[2]
    run = generate(target, PROMPTS, draft=draft, stop_tokens=[first], max_tokens=20)
    while run.reason[0] is None:
        next(run)
    held = len(PROMPTS[0]) + len(run.tokens[0])
    before = {name: state[0].copy() for name, state in target.state.items()}
    assert target.position[0] == held
    list(run)
    for name, state in before.items():
        np.testing.assert_array_equal(target.state[name][0], state)


@every(3, "count", "way", "kind")
@pytest.mark.parametrize("count", [1, 2, 4, 7])
@pytest.mark.parametrize("way", ["close", "drop", "look"])
@pytest.mark.parametrize("kind", KINDS)
def test_leaving_early_leaves_rows_as_without_a_draft(open_rows, kind, way, count):
    target, draft = open_rows(kind), open_rows(kind, NOISES["similar"])
    lone = open_rows(kind)
    other = generate(lone, PROMPTS, max_tokens=20)
    run = generate(target, PROMPTS, draft=draft, max_tokens=20)
    for _ in range(count):
        assert next(run) == next(other)
    pending = run.pending
    assert pending == other.pending
    if way == "close":
        run.close()
    elif way == "drop":
        del run
    assert target.position.tolist() == lone.position.tolist()
    assert draft.position.tolist() == lone.position.tolist()
    if way == "look":
        assert list(run) == list(other)
        pending = run.pending
    one = generate(target, pending, draft=draft, max_tokens=5)
    assert list(one) == list(generate(lone, other.pending, max_tokens=5))


@every(7, "at", "kind", "which", "late")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_call_leaves_both_in_line(
    programs, open_rows, kind, which, at, late
):
    target, draft = open_rows(kind), open_rows(kind, NOISES["similar"])
    run = generate(target, PROMPTS, draft=draft, max_tokens=40)
    session = {"target": target, "draft": draft}[which]
    with pytest.raises(KeyboardInterrupt), interrupted(session, at, late):
        list(run)
    texts = [[*p, *t] for p, t in zip(PROMPTS, run.tokens, strict=True)]
    held = target.position.tolist()
    for row, text in enumerate(texts):
        assert text[held[row] :] == list(run.pending[row])
        assert draft.position[row] <= held[row]
    again = generate(target, [[*some, 7] for some in run.pending], max_tokens=8)
    list(again)
    others = alone(programs, kind, [[*text, 7] for text in texts], max_tokens=8)
    assert list(again.tokens) == [one.tokens for one in others]


@pytest.mark.parametrize("way", WAYS)
def test_full_rows_end_and_the_others_go_on(programs, open_rows, way):
    longer = [[1, 2] * 12, [3], [4, 5] * 5]
    target = open_rows("cache", capacity=32)
    draft = open_rows("cache", NOISES.get(way, 0.0), capacity=30)
    run = generated(target, longer, way, draft)
    list(run)
    assert run.reason == ("length",) * 3
    assert target.position.tolist() == [32] * 3
    for row, prompt in enumerate(longer):
        with programs["cache", 0.0].session(capacity=32) as single:
            assert run.tokens[row] == list(generate(single, prompt))


def test_histories_teach_each_row_of_a_draft(programs, open_rows):
    target, draft = open_rows("cache"), open_rows("cache")
    first = generate(target, PROMPTS, max_tokens=5)
    list(first)
    histories = [[*p, *t[:-1]] for p, t in zip(PROMPTS, first.tokens, strict=True)]
    lengths = np.array([1, 0, 4])
    draft.prefill(np.array([row[:1] * 4 for row in histories]), lengths)
    run = generate(target, first.pending, draft=draft, history=histories, max_tokens=15)
    list(run)
    others = alone(programs, "cache", PROMPTS, max_tokens=20)
    for row, other in enumerate(others):
        assert first.tokens[row] + run.tokens[row] == other.tokens
    assert draft.position.tolist() == target.position.tolist()
    with pytest.raises(BadSetting, match=r"holds the same \d+ tokens"):
        generate(target, first.pending, draft=open_rows("cache"))


def test_checks_of_no_fewer_tokens_are_padded(programs):
    others = alone(programs, "cache", PROMPTS, max_tokens=20)
    wide = programs["cache", 0.0, 5]
    with wide.session(batch=3) as target:
        run = generate(target, PROMPTS, draft="prompt", max_tokens=20)
        list(run)
        assert_same(run, target, others, PROMPTS)
        assert run.drafted > 0


def test_logits_that_cannot_be_used_come_up_where_they_would(programs, open_rows):
    """A row that got ahead hands out what it has before."""
    bias = {"logit_bias": {VOCAB - 1: 9.0}}
    lone, target = open_rows("unclear"), open_rows("unclear")
    draft = open_rows("cache")
    other = generate(lone, PROMPTS, max_tokens=30, **bias)
    run = generate(target, PROMPTS, draft=draft, max_tokens=30, **bias)
    runs = []
    for one in (other, run):
        with pytest.raises(UnusableLogits, match="NaN is among them"):
            list(one)
        runs.append(one.tokens)
    assert runs[0] == runs[1]


def test_a_copy_of_a_row_stays_where_other_rows_go_on(open_rows):
    """`snapshots` counts the calls that have tokens of the row."""
    session = open_rows("sums", snapshots=1)
    tokens = np.array([[1, 2], [3, 4], [5, 6]])
    session.prefill(tokens, np.array([2, 2, 2]))
    before = session.state["total"][0]
    session.prefill(tokens, np.array([2, 1, 0]))
    for _ in range(3):
        session.decode(tokens[:, :1], np.array([False, True, False]))
    session.rewind(np.array([2, 1, 2]))
    assert session.position.tolist() == [2, 5, 0]
    assert session.state["total"].tolist() == [before, 16, 0]


def test_a_draft_of_other_rows_is_refused(open_rows):
    target = open_rows("cache")
    with pytest.raises(BadSetting, match=r"draft: .* 3 rows, .* got 2 rows"):
        generate(target, PROMPTS, draft=open_rows("cache", rows=2))
    with pytest.raises(BadSetting, match=r"draft: .* 3 rows, .* got 1 row$"):
        generate(target, PROMPTS, draft=open_rows("cache", rows=1))


@pytest.mark.parametrize("draft", ["prompt", None])
def test_answers_and_beams_go_without_a_draft(open_rows, draft):
    target = open_rows("cache")
    draft = draft or open_rows("cache")
    for asked in ({"n": 3}, {"num_beams": 3}):
        with pytest.raises(BadSetting, match="without a draft"):
            generate(target, [1, 2], draft=draft, **asked)


def test_a_list_of_one_prompt_is_guessed_for_too(programs, open_rows):
    expected = alone(programs, "cache", PROMPTS[1:2], max_tokens=9)[0].tokens
    target = open_rows("cache", rows=1)
    run = generate(target, PROMPTS[1:2], draft="prompt", max_tokens=9)
    assert [step[0] for step in run] == expected
