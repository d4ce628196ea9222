"""Several answers to one prompt: as the prompt several times, but it runs once."""

import pytest
from wordy_models import BEGIN, CAPACITY, END, ROWS, write_wordy

from kvc.runtime import (
    BadSetting,
    BatchGeneration,
    PromptTooLong,
    SettingIgnored,
    StateMismatch,
    generate,
    load,
)
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.spreading import BeamDecoding

PROMPT = [BEGIN, 40, 90, 41, 90, 41, 90]
DRAWN = {"temperature": 1.3, "seed": 4, "max_tokens": 8, "stop_tokens": [END]}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with load(write_wordy(tmp_path_factory.mktemp("spread") / "wordy.kvc")) as opened:
        yield opened


@pytest.fixture
def session(program):
    with program.session(batch=ROWS) as opened:
        yield opened


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 2.0, "logprobs": 1}])
def test_answers_are_those_of_the_prompt_given_to_each_row(program, session, more):
    run = generate(session, PROMPT, n=ROWS, **DRAWN, **more)
    assert isinstance(run, BatchGeneration)
    steps = list(run)
    with program.session(batch=ROWS) as rows:
        other = generate(rows, [PROMPT] * ROWS, **DRAWN, **more)
        assert steps == list(other)
        assert run.reason == other.reason
        assert run.pending == other.pending
        assert rows.position.tolist() == session.position.tolist()
    assert len(set(map(tuple, run.tokens))) == ROWS
    assert [len(one) for one in run.logprobs] == [8 * len(more) // 2] * ROWS


def test_the_prompt_runs_once_in_one_row(program, session, monkeypatch):
    ran = []
    run = Feeder.run

    def noting(self, method, parts, *rest):
        ran.append([len(part) for part in parts])
        return run(self, method, parts, *rest)

    monkeypatch.setattr(Feeder, "run", noting)
    made = generate(session, PROMPT, n=ROWS, **DRAWN)
    next(made)
    assert all(len(parts) == 1 for parts in ran)
    assert sum(parts[0] for parts in ran) == made.prefill.tokens == len(PROMPT)


def test_log_probabilities_of_the_prompt_are_those_of_each_row(session):
    run = generate(session, PROMPT, n=ROWS, prompt_logprobs=1, **DRAWN)
    next(run)
    for row in run.prompt_logprobs:
        assert [one.token for one in row] == PROMPT[1:]
    assert len(run.prompt_logprobs) == ROWS


def test_a_text_is_answered_several_times(session):
    run = generate(session, "def", n=ROWS, **DRAWN)
    assert len(set(run.texts())) == ROWS


def test_row_0_is_what_a_later_prompt_continues(program, session):
    first = generate(session, PROMPT, n=ROWS, **DRAWN)
    list(first)
    more = [*first.pending[0], 50, 60]
    again = generate(session, more, n=ROWS, **DRAWN)
    list(again)
    whole = [*PROMPT, *first.tokens[0], 50, 60]
    with program.session(batch=ROWS) as rows:
        other = generate(rows, whole, n=ROWS, **DRAWN)
        list(other)
    assert again.tokens == other.tokens


def test_each_row_may_be_continued_by_itself(program, session):
    first = generate(session, PROMPT, n=ROWS, **DRAWN)
    list(first)
    again = generate(session, [[*one, 50] for one in first.pending], max_tokens=4)
    list(again)
    for row, tokens in enumerate(first.tokens):
        with program.session() as alone:
            run = generate(alone, [*PROMPT, *tokens, 50], max_tokens=4)
            assert list(run) == again.tokens[row]


def test_one_answer_is_a_batch_of_one(program):
    with program.session() as session:
        run = generate(session, PROMPT, n=1, **DRAWN)
        assert isinstance(run, BatchGeneration)
        assert len(list(run)) == 8


@pytest.mark.parametrize(
    ("told", "given"),
    [
        ("n: expected as many as the session has rows, 3", {"n": 2}),
        ("n: expected a whole number, 1 or more", {"n": 0}),
        ("n: expected a whole number", {"n": "two"}),
        ("n: expected no value: it goes with one prompt", {"draft": "prompt"}),
    ],
)
def test_what_cannot_be_is_refused(session, told, given):
    with pytest.raises(BadSetting, match=told):
        generate(session, PROMPT, **{"n": ROWS, **given})
    with pytest.raises(
        BadSetting, match="n: expected no value: it goes with one prompt"
    ):
        generate(session, [PROMPT] * ROWS, n=ROWS)


def test_a_prompt_without_room_is_refused(session):
    with pytest.raises(PromptTooLong):
        generate(session, [40] * (CAPACITY + 1), n=ROWS)


@pytest.mark.parametrize(
    "asked", [{"n": ROWS, "temperature": 1.0}, {"num_beams": ROWS, "max_tokens": 4}]
)
def test_what_else_uses_the_session_is_noticed(session, asked):
    run = generate(session, PROMPT, **asked)
    generate(session, [PROMPT] * ROWS, max_tokens=1).__next__()
    with pytest.raises(StateMismatch, match="something else has used the session"):
        next(run)


@pytest.mark.parametrize(
    "asked", [{"n": ROWS, "temperature": 1.0}, {"num_beams": ROWS, "max_tokens": 4}]
)
def test_a_prompt_that_fails_leaves_the_session_as_it_was(session, monkeypatch, asked):
    def failing(self, prompts):
        raise InterruptedError

    run = generate(session, PROMPT, **asked)
    monkeypatch.setattr(Feeder, "feed_prompts", failing)
    with pytest.raises(InterruptedError):
        next(run)
    assert session.position.tolist() == [0] * ROWS
    pending = run.pending if "n" in asked else [run.pending]
    assert set(pending) == {tuple(PROMPT)}


def test_equal_answers_are_told_once(session):
    with pytest.warns(SettingIgnored, match="all answers will be equal") as caught:
        generate(session, PROMPT, n=ROWS)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_rows_move_without_being_overwritten(session):
    """Whatever beams continue which: each new beam has the row of its parent."""

    class Rows:
        def copy_rows(self, copies):
            for source, target in copies:
                self.held[target] = self.held[source]

    source = object.__new__(BeamDecoding)
    source._spread = spread = Rows()
    for rows in ([0, 1, 2], [2, 0, 1]):
        for number in range(27):
            parents = [number // 9, number // 3 % 3, number % 3]
            spread.held = {row: beam for beam, row in enumerate(rows)}
            moved = source._move(rows, parents)
            assert sorted(moved) == [0, 1, 2]
            assert [spread.held[row] for row in moved] == parents
