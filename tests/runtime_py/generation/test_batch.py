"""Batches of prompts: each row as it would be alone."""

import numpy as np
import pytest
from counting_model import VOCAB as COUNTED
from counting_model import counting_program
from hand_built import write_bundle
from spelling_tokenizers import PieceTokenizer
from summing_rows import CHUNK, SLOTS, VOCAB, likeliest, summing_rows

from kvc.runtime import (
    BadSetting,
    BatchGeneration,
    Generation,
    InputMismatch,
    PromptTooLong,
    StateMismatch,
    UnusableLogits,
    generate,
    load,
)

PROMPTS = [[3], [1, 2, 3, 4, 5], list(range(11)), [9, 8, 7]]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.kvc"
    summing_rows(path)
    with load(path) as opened:
        yield opened


@pytest.fixture
def session(program):
    with program.session(batch=4) as opened:
        yield opened


def alone(program, prompt, **settings):
    """Return tokens and reason of a prompt in a session of its own."""
    with program.session() as session:
        run = generate(session, prompt, **settings)
        return list(run), run.reason


def rows_of(steps):
    """Return each row's tokens from the steps of a batch."""
    return [[t for t in row if t is not None] for row in zip(*steps, strict=True)]


def test_each_row_makes_the_tokens_that_it_makes_alone(program, session):
    run = generate(session, PROMPTS, max_tokens=6)
    assert isinstance(run, BatchGeneration)
    steps = list(run)
    expected = [alone(program, prompt, max_tokens=6)[0] for prompt in PROMPTS]
    assert rows_of(steps) == list(run.tokens) == expected
    assert expected[1][0] == likeliest(PROMPTS[1])
    assert run.reason == ("max_tokens",) * 4
    assert session.position.tolist() == [len(p) + 5 for p in PROMPTS]
    assert run.pending == tuple((tokens[-1],) for tokens in expected)


def test_rows_end_at_different_times(program, session):
    settings = {"stop_tokens": [20, 28], "max_tokens": 9}
    expected = [alone(program, prompt, **settings) for prompt in PROMPTS]
    assert len({len(tokens) for tokens, _ in expected}) > 2
    run = generate(session, PROMPTS, **settings)
    steps = list(run)
    assert list(zip(run.tokens, run.reason, strict=True)) == expected
    assert len(steps) == max(len(tokens) for tokens, _ in expected)
    for row, (tokens, _) in enumerate(expected):
        given = [step[row] for step in steps]
        assert given == tokens + [None] * (len(steps) - len(tokens))


def test_a_row_that_has_ended_is_not_touched(program, session):
    run = generate(session, PROMPTS, stop_tokens=[likeliest(PROMPTS[0])], max_tokens=9)
    next(run)
    assert run.reason[0] == "stop"
    assert run.tokens[0] == []
    assert run.pending[0] == (likeliest(PROMPTS[0]),)
    before = session.state["kept"][0].copy()
    list(run)
    assert session.position[0] == len(PROMPTS[0])
    np.testing.assert_array_equal(session.state["kept"][0], before)


def test_a_full_row_ends_and_the_others_go_on(program, session):
    long = [1] * (SLOTS - 2)
    run = generate(session, [long, [2], [3, 4], long[:-4]])
    list(run)
    assert run.reason == ("length",) * 4
    assert [len(tokens) for tokens in run.tokens] == [3, SLOTS, SLOTS - 1, 7]
    assert run.tokens[0] == alone(program, long)[0]
    assert session.position.tolist() == [SLOTS] * 4


@pytest.mark.parametrize("seed", [0, 5])
def test_row_r_chooses_by_seed_plus_r(program, session, seed):
    settings = {"temperature": 1.5, "top_k": 20, "max_tokens": 6}
    run = generate(session, [[7, 7]] * 4, seed=seed, **settings)
    list(run)
    expected = [alone(program, [7, 7], seed=seed + r, **settings)[0] for r in range(4)]
    assert list(run.tokens) == expected
    assert len({tuple(tokens) for tokens in expected}) > 1


def test_penalties_look_at_each_row_alone(program, session):
    settings = {"repetition_penalty": 3.0, "max_tokens": 8}
    run = generate(session, PROMPTS, **settings)
    list(run)
    assert list(run.tokens) == [alone(program, p, **settings)[0] for p in PROMPTS]
    history = [[], [], [4] * 3, []]
    with program.session(batch=4) as other:
        run = generate(other, PROMPTS, history=history, **settings)
        list(run)
    expected = alone(program, PROMPTS[2], history=history[2], **settings)[0]
    assert run.tokens[2] == expected


def test_a_later_turn_goes_on_in_each_row(program, session):
    first = generate(session, PROMPTS, max_tokens=3)
    list(first)
    more = [[*pending, 4, row] for row, pending in enumerate(first.pending)]
    second = generate(session, more, max_tokens=3)
    list(second)
    for row, prompt in enumerate(PROMPTS):
        with program.session() as single:
            begun = generate(single, prompt, max_tokens=3)
            list(begun)
            again = generate(single, [*begun.pending, 4, row], max_tokens=3)
            assert second.tokens[row] == list(again)


def test_whoever_leaves_early_can_go_on(program, session):
    run = generate(session, PROMPTS, max_tokens=9)
    steps = [next(run), next(run)]
    run.close()
    assert list(run) == []
    assert run.reason == (None,) * 4
    assert session.position.tolist() == [len(p) + 1 for p in PROMPTS]
    again = generate(session, run.pending, max_tokens=2)
    steps += list(again)
    expected = [alone(program, prompt, max_tokens=4)[0] for prompt in PROMPTS]
    assert rows_of(steps) == expected


def test_prompts_run_in_chunks_no_wider_than_needed(session, monkeypatch):
    calls, call = [], session.call

    def noting(name, tokens, **counts):
        (given,) = counts.values()
        calls.append((name, tokens.shape[1], given.tolist()))
        return call(name, tokens, **counts)

    monkeypatch.setattr(session, "call", noting)
    list(generate(session, [[1] * 3, [2] * 11, [3], [4] * 6], max_tokens=2))
    assert calls == [
        ("prefill", 6, [3, 6, 1, 6]),
        ("prefill", 5, [0, 5, 0, 0]),
        ("decode", 1, [True] * 4),
    ]
    calls.clear()
    list(generate(session, [[1], [2, 3, 4, 5], [6, 7], [8]], max_tokens=1))
    assert calls == [("prefill_4", 4, [1, 4, 2, 1])]


def test_a_prompt_of_one_token_each_runs_once(session):
    run = generate(session, [[1], [2], [3], [4]], max_tokens=1)
    list(run)
    assert run.tokens == ([5], [9], [13], [17])
    assert run.prefill.tokens == 4
    assert run.time_to_first_token > 0


def test_figures_count_the_tokens_of_all_rows(session):
    run = generate(session, PROMPTS, max_tokens=3)
    assert run.time_to_first_token is None
    list(run)
    assert run.prefill.tokens == sum(map(len, PROMPTS))
    assert run.decode.tokens == 2 * 4


def test_arrays_may_be_padded_on_either_side(program, session):
    width = max(map(len, PROMPTS))
    left, right = np.zeros((2, 4, width), np.int64)
    left_mask, right_mask = np.zeros((2, 4, width), np.int64)
    for row, prompt in enumerate(PROMPTS):
        left[row, width - len(prompt) :] = right[row, : len(prompt)] = prompt
        left_mask[row, width - len(prompt) :] = right_mask[row, : len(prompt)] = 1
    expected = [alone(program, prompt, max_tokens=4)[0] for prompt in PROMPTS]
    for tokens, mask in ((left, left_mask), (right, right_mask)):
        session.reset()
        run = generate(session, tokens, attention_mask=mask, max_tokens=4)
        list(run)
        assert list(run.tokens) == expected


def test_an_array_without_a_mask_is_a_batch_too(program, session):
    tokens = np.arange(8).reshape(4, 2)
    run = generate(session, tokens, max_tokens=3)
    list(run)
    assert run.tokens[3] == alone(program, [6, 7], max_tokens=3)[0]


PIECES = [bytes([ord("a") + n % 26]) * (1 + n // 26) for n in range(VOCAB)]
PIECES[31] = b"\xe2"


def test_texts_are_those_of_the_rows_alone(program, session):
    tokenizer = PieceTokenizer(PIECES)
    settings = {"tokenizer": tokenizer, "max_tokens": 8, "stop_strings": ["ok", "bb"]}
    prompts = ["bca", "b", "cdefghij", "k"]
    run = generate(session, prompts, **settings)
    texts = run.texts()
    assert run.texts() == texts
    for row, prompt in enumerate(prompts):
        with program.session() as single:
            one = generate(single, prompt, **settings)
            assert texts[row] == "".join(one.text())
            assert (run.tokens[row], run.reason[row]) == (one.tokens, one.reason)
    assert "stop_string" in run.reason


def test_special_tokens_begin_rows_that_hold_nothing(program, session):
    tokenizer = PieceTokenizer(PIECES)
    run = generate(session, ["b", "cd", "e", "f"], tokenizer=tokenizer, max_tokens=1)
    list(run)
    assert session.position.tolist() == [2, 3, 2, 2]
    list(generate(session, ["b", "cd", "e", "f"], tokenizer=tokenizer, max_tokens=1))
    assert session.position.tolist() == [3, 5, 3, 3]


def test_one_prompt_in_a_list_is_a_batch_of_one(program):
    with program.session() as single:
        run = generate(single, [[5, 6]], max_tokens=3)
        assert isinstance(run, BatchGeneration)
        steps = list(run)
        assert rows_of(steps) == [alone(program, [5, 6], max_tokens=3)[0]]


def test_one_prompt_is_a_generation_also_of_a_program_of_rows(program):
    with program.session() as single:
        run = generate(single, np.array([[5, 6]]), max_tokens=3)
        assert isinstance(run, Generation)
        held = [5, 6]
        for token in run:
            assert token == likeliest(held)
            held.append(token)


def test_a_list_of_one_prompt_runs_on_any_program(tmp_path):
    with load(write_bundle(tmp_path / "c.kvc", counting_program())) as opened:
        run = generate(opened.session(), [[3, 4]], max_tokens=20)
        assert [step[0] for step in run] == list(range(5, 20))
        assert run.reason == ("length",)
    unlimited = counting_program(capacity=None)
    with load(write_bundle(tmp_path / "u.kvc", unlimited)) as opened:
        run = generate(opened.session(), [[0]], max_tokens=40)
        assert [step[0] for step in run] == [(i + 1) % COUNTED for i in range(40)]


def test_no_tokens_asked_for_means_that_nothing_runs(session):
    run = generate(session, PROMPTS, max_tokens=0)
    assert list(run) == []
    assert run.reason == ("max_tokens",) * 4
    assert session.position.tolist() == [0] * 4
    assert run.pending == tuple(map(tuple, PROMPTS))


def test_max_length_counts_what_each_row_holds(session):
    run = generate(session, PROMPTS, max_length=13)
    list(run)
    assert [len(tokens) for tokens in run.tokens] == [12, 8, 2, 10]
    with pytest.raises(BadSetting, match="max_length: expected more than 13"):
        generate(session, PROMPTS, max_length=13)


def test_what_else_uses_the_session_is_noticed(session):
    run = generate(session, PROMPTS, max_tokens=9)
    next(run)
    session.decode(np.array([[1]] * 4), np.array([False, True, False, False]))
    with pytest.raises(StateMismatch, match=r"found \[1, 6, 11, 3\]; something else"):
        next(run)


def test_other_tokens_in_as_many_places_are_noticed(session):
    run = generate(session, PROMPTS, max_tokens=9)
    next(run)
    session.rewind(1)
    session.decode(np.array([[30]] * 4), np.array([True] * 4))
    with pytest.raises(StateMismatch, match="something else has used the session"):
        next(run)


def test_a_step_that_fails_in_one_row_is_handed_out_in_none(session, monkeypatch):
    run = generate(session, PROMPTS, max_tokens=5)
    first, call = next(run), session.call

    def spoilt(*args, **lengths):
        made = call(*args, **lengths)
        made[1] = np.nan
        return made

    monkeypatch.setattr(session, "call", spoilt)
    with pytest.raises(UnusableLogits, match="NaN is among them"):
        next(run)
    assert run.tokens == tuple([token] for token in first)
    assert run.pending == ((),) * 4
    assert list(run) == []


@pytest.mark.parametrize(
    ("prompts", "settings", "kind", "message"),
    [
        ([[1], [2]], {}, BadSetting, r"rows, 4 \(session\(batch=2\)"),
        ([[1]] * 5, {}, BadSetting, "got 5"),
        ([[1], [2], [], [3]], {}, BadSetting, "one token, got none in prompt 2"),
        ([[1], [2], 3, [4]], {}, BadSetting, "got 3 as prompt 2"),
        ([[1], [2], [3], [VOCAB]], {}, InputMismatch, f"got token {VOCAB}"),
        ([[1], [2], [3], [-1]], {}, BadSetting, "got -1"),
        ([[1], [2], [1] * 25, [3]], {}, PromptTooLong, "prompt of row 2 has 25 tokens"),
        ([[1]] * 4, {"history": [[1]]}, BadSetting, "history: expected tokens"),
        ([[1]] * 4, {"history": [1, 2, 3, 4]}, BadSetting, "a list of tokens for each"),
        ([[1, 2]] * 4, {"attention_mask": [[1, 1]] * 3}, BadSetting, "the tokens'"),
        ([[1, 2]] * 4, {"attention_mask": [[0, 0]] * 4}, BadSetting, "one token"),
        (["a"] * 4, {"attention_mask": [[1]] * 4}, BadSetting, "none with texts"),
        ("a", {"attention_mask": [1]}, BadSetting, "none with texts"),
        ([[1], [2, 3]] * 2, {"attention_mask": [[1]] * 4}, BadSetting, "as many in"),
        ([[1]] * 4, {"temperature": -1}, BadSetting, "temperature"),
        (np.ones((0, 3), int), {}, BadSetting, "prompt: expected at least one"),
        (np.ones((4, 3)), {}, BadSetting, "expected whole numbers, got float64"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_runs(
    session, prompts, settings, kind, message
):
    with pytest.raises(kind, match=message):
        generate(session, prompts, **settings)
    assert session.position.tolist() == [0] * 4


@pytest.mark.parametrize("prompt", [None, [], {"input_ids": [[1, 2]]}, 1.5])
def test_what_is_no_prompt_is_not_blamed_on_the_session(session, prompt):
    with pytest.raises(BadSetting, match="prompt: expected"):
        generate(session, prompt)


def test_one_prompt_for_many_rows_is_refused(session):
    with pytest.raises(BadSetting, match="with a prompt for each, got 4 rows"):
        generate(session, [1, 2, 3])


def test_a_chunk_is_what_the_program_takes(session):
    assert session.symbols["seq"].upper == CHUNK
