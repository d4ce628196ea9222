"""Beams: the answers of transformers' own search, and the session afterwards."""

import numpy as np
import pytest
import torch
from wordy_models import BEGIN, END, ROWS, wordy_llama, write_wordy

from kvc.runtime import (
    BadSetting,
    Generation,
    SettingIgnored,
    UnusableLogits,
    generate,
    load,
)
from kvc.runtime.generation import settings_of
from kvc.runtime.generation.answer import Row
from kvc.runtime.generation.beams import BeamSearch
from kvc.runtime.generation.spreading import BeamAnswer, most_tokens

pytest.importorskip("transformers")
PROMPT = [BEGIN, 40, 90, 41, 90, 41, 90]
STEPS = 10
LIKED = [370, 41, 61]  # tokens that the model likes, so that beams end early

WAYS = {
    "plain": {},
    "penalty": {"repetition_penalty": 1.8},
    "pairs": {"no_repeat_ngram_size": 2},
    "bias": {"sequence_bias": [[[41], 3.0], [[41, 90, 50], 99.0]]},
    "bad": {"bad_words_ids": [[61], [370, 370]]},
    "late": {"min_new_tokens": 5},
    "hidden": {"suppress_tokens": [370], "begin_suppress_tokens": [386]},
    "forced": {"forced_eos_token_id": END},
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with load(write_wordy(tmp_path_factory.mktemp("beams") / "wordy.kvc")) as opened:
        yield opened


@pytest.fixture(scope="module")
def model():
    return wordy_llama()


@pytest.fixture
def session(program):
    with program.session(batch=ROWS) as opened:
        yield opened


def made_by_transformers(model, prompt, steps=STEPS, beams=ROWS, eos=END, **settings):
    """Return the best answer, with the stop token that ended it, and its score."""
    found = model.generate(
        torch.tensor([prompt]),
        num_beams=beams,
        max_new_tokens=steps,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=END,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    return found.sequences[0, len(prompt) :].tolist(), found.sequences_scores.item()


def search(session, prompt=PROMPT, steps=STEPS, beams=ROWS, eos=END, **settings):
    """Return the best answer, with the stop token that ended it, and its score."""
    asked = {"num_beams": beams, "max_tokens": steps, "stop_tokens": eos, **settings}
    run = generate(session, prompt, **asked)
    assert isinstance(run, Generation)
    tokens = list(run)
    assert tokens == run.tokens
    return tokens + (list(run.pending) if run.reason == "stop" else []), run.score


@pytest.mark.parametrize("eos", [END, 386, LIKED], ids=["end", "liked", "several"])
@pytest.mark.parametrize("name", WAYS)
def test_answers_and_scores_are_those_of_transformers(model, session, name, eos):
    expected, score = made_by_transformers(model, PROMPT, eos=eos, **WAYS[name])
    found, own = search(session, eos=eos, **WAYS[name])
    assert found == expected
    assert own == pytest.approx(score, rel=1e-4)
    assert session.position[0] == len(PROMPT) + len(found) - 1


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_lengths_and_ends_count_as_in_transformers(
    model, session, early, penalty, steps
):
    said = {"early_stopping": early, "length_penalty": penalty}
    for eos in (370, LIKED):
        expected = made_by_transformers(model, PROMPT, steps, eos=eos, **said)
        session.reset()
        found = search(session, steps=steps, eos=eos, **said)
        assert found[0] == expected[0]
        assert found[1] == pytest.approx(expected[1], rel=1e-4)


def test_how_lengths_count_has_an_effect(session):
    made = set()
    for early, penalty in ((True, 1.0), (False, 2.5), ("never", -1.0)):
        session.reset()
        said = {"early_stopping": early, "length_penalty": penalty}
        made.add(tuple(search(session, eos=LIKED, steps=20, **said)[0]))
    assert len(made) > 1


def test_a_search_finds_what_the_likeliest_token_misses(program, session):
    with program.session() as alone:
        greedy = list(generate(alone, PROMPT, max_tokens=STEPS, stop_tokens=END))
    assert search(session)[0] != greedy


def test_two_beams_of_another_prompt(model, program):
    prompt = [BEGIN, 50]
    expected, _ = made_by_transformers(model, prompt, beams=2, eos=LIKED)
    with program.session(batch=2) as session:
        assert search(session, prompt, beams=2, eos=LIKED)[0] == expected


def test_the_answer_may_fill_the_cache(model, program):
    room = 9
    with program.session(len(PROMPT) + room, batch=ROWS) as session:
        run = generate(session, PROMPT, num_beams=ROWS, stop_tokens=END)
        expected, _ = made_by_transformers(model, PROMPT, steps=room + 1)
        assert list(run) == expected
        assert run.reason == "length"
        assert session.position[0] == session.capacity


def test_the_session_goes_on_after_prompt_and_answer(model, program, session):
    more = [7, 8, 9]
    first = generate(session, PROMPT, num_beams=ROWS, max_tokens=6, stop_tokens=END)
    tokens = list(first)
    assert first.reason == "max_tokens"
    assert first.pending == tuple(tokens[-1:])
    assert session.pending == (first.pending, (), ())
    again = [*first.pending, *more]
    whole = [*PROMPT, *tokens, *more]
    expected, score = made_by_transformers(model, whole)
    found, own = search(session, again)
    assert found == expected
    assert own == pytest.approx(score, rel=1e-4)


def test_row_0_has_the_states_of_prompt_and_answer(program, session):
    run = generate(session, PROMPT, num_beams=ROWS, max_tokens=6, stop_tokens=END)
    held = [*PROMPT, *list(run)[:-1]]
    with program.session() as alone:
        generate(alone, held, max_tokens=1).__next__()
        for name, state in alone.state.items():
            found = np.array(session.state[name])[0]
            np.testing.assert_allclose(found, np.array(state)[0], atol=1e-5)


def test_a_loop_that_is_left_early_leaves_the_whole_answer(session):
    run = generate(session, PROMPT, num_beams=ROWS, max_tokens=6, stop_tokens=END)
    first = next(run)
    run.close()
    assert run.tokens == [first]
    assert run.reason is None
    assert session.position[0] == len(PROMPT) + 5
    assert session.pending[0] == run.pending
    assert len(run.pending) == 1


def test_log_probabilities_are_the_models_own(program, session):
    run = generate(session, PROMPT, num_beams=ROWS, max_tokens=6, logprobs=2)
    tokens = list(run)
    assert [one.token for one in run.logprobs] == tokens
    assert sum(one.logprob for one in run.logprobs) / 6 == pytest.approx(run.score)
    assert all(len(one.top) == 2 for one in run.logprobs)


def test_rows_are_copied_only_where_beams_part(session, monkeypatch):
    copied = []
    copy_row = type(session).copy_row

    def noting(self, source, target):
        assert source != target
        copied.append((source, target))
        copy_row(self, source, target)

    monkeypatch.setattr(type(session), "copy_row", noting)
    search(session, eos=LIKED)
    assert 0 < len(copied) < STEPS * (ROWS - 1)


def test_no_tokens_asked_for_means_that_nothing_runs(session):
    assert list(generate(session, PROMPT, num_beams=ROWS, max_tokens=0)) == []
    assert session.position.tolist() == [0] * ROWS


def test_texts_come_at_the_end(program, session):
    run = generate(session, PROMPT, num_beams=ROWS, max_tokens=6, stop_tokens=END)
    text = "".join(run.text())
    assert text
    assert run.decode.tokens == len(run.tokens) - 1
    assert run.prefill.tokens == len(PROMPT)


@pytest.mark.parametrize(
    ("told", "settings"),
    [
        ("temperature: expected 0", {"temperature": 0.5}),
        ("temperature: expected 0", {"do_sample": True}),
        ("stop_strings: expected none", {"stop_strings": "a"}),
        ("choices: expected none: beams have no form", {"choices": ["a"]}),
        ("n: expected no value", {"n": 2}),
        ("num_beams: expected no value", {"draft": "prompt"}),
        ("num_beams: .*as many as the session has rows, 3", {"num_beams": 2}),
        ("num_beams: expected a whole number, 1 or more", {"num_beams": 0}),
        ("length_penalty: ", {"length_penalty": "long"}),
        ("early_stopping: expected True, False or", {"early_stopping": "soon"}),
        ("num_return_sequences: .*n=", {"num_return_sequences": 2}),
    ],
)
def test_what_does_not_go_with_beams_is_refused(session, told, settings):
    with pytest.raises(BadSetting, match=told):
        generate(session, PROMPT, **{"num_beams": ROWS, **settings})


def test_several_prompts_are_refused(session):
    with pytest.raises(BadSetting, match="num_beams: expected no value: it goes"):
        generate(session, [PROMPT] * ROWS, num_beams=ROWS)


BUNDLE = {"generation_config": '{"num_beams": 3, "length_penalty": 0.5}'}


def test_a_bundles_beams_need_as_many_rows():
    assert settings_of(BUNDLE, {}, rows=3).num_beams == 3
    assert settings_of(BUNDLE, {}, rows=3).length_penalty == 0.5
    assert settings_of(BUNDLE, {"num_beams": 1}).num_beams == 1
    for given, rows in (
        ({}, None),
        ({}, 1),
        ({}, 0),
        ({"temperature": 1}, 3),
        ({"choices": ["a"]}, 3),
        ({"stop_strings": "a"}, 3),
    ):
        with pytest.warns(SettingIgnored, match="num_beams=3: ignored; .*as many rows"):
            assert settings_of(BUNDLE, given, rows=rows).num_beams == 1


def test_of_equal_scores_the_first_is_kept():
    found = BeamSearch(2, [], 2)
    found.step(np.log(np.full((2, 4), 0.25, np.float32)))
    assert [beam.tokens for beam in found.beams] == [(0,), (1,)]
    found.step(np.log(np.full((2, 4), 0.25, np.float32)))
    assert found.is_over
    assert found.best.tokens == (0, 0)
    assert found.best.score == pytest.approx(np.log(0.25))


@pytest.mark.parametrize(
    ("early", "penalty", "is_over"),
    [
        (False, 1.0, True),  # -0.9 is worse than -0.6
        ("never", 1.0, False),  # -0.9 / 10 would be better
        ("never", -1.0, True),  # a longer answer cannot be
        (True, 1.0, True),
    ],
)
def test_a_search_ends_when_nothing_better_can_come(early, penalty, is_over):
    found = BeamSearch(1, [0], 10, penalty, early)
    found.step(np.array([[-0.6, -0.9, -5.0]], np.float32))
    assert found.best.tokens == (0,)
    assert found.is_over == is_over


def test_an_answer_without_any_limit_is_refused():
    row = Row(start=0, capacity=None)
    answer = BeamAnswer((1,), row, settings_of({}, {}), lambda: None)
    with pytest.raises(BadSetting, match=r"max_tokens: .*beams need a limit"):
        most_tokens(answer, row)


def test_a_forced_token_that_the_model_lacks_is_told(session):
    asked = {"max_tokens": 3, "forced_eos_token_id": 9999}
    run = generate(session, [BEGIN, 40], num_beams=ROWS, **asked)
    with pytest.raises(UnusableLogits, match="token 9999 is forced"):
        list(run)
