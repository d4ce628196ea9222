"""Guesses from the text itself: the same tokens in fewer calls."""

import numpy as np
import pytest
from drafting_models import Summing, Table, write_decoder, write_table
from hypothesis import given, settings
from hypothesis import strategies as st

from kvc.runtime import BadSetting, NotRewindable, UnknownName, generate, load
from kvc.runtime.generation.guessing import _latest

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
VOCAB = 32


def repeating() -> np.ndarray:
    """Return logits after each token that make a circle of eight tokens."""
    rows = np.full((VOCAB, VOCAB), -1.0, np.float32)
    for token in range(VOCAB):
        rows[token, (token + 1) % 8] = 1
    return rows


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    import torch

    folder, rows = tmp_path_factory.mktemp("guesses"), torch.tensor(repeating())
    made = {
        "decoder": write_decoder(folder / "decoder.kvc"),
        "circle": write_table(folder / "circle.kvc", Table(rows)),
        "summing": write_table(folder / "summing.kvc", Summing(rows)),
        "plain": write_decoder(folder / "plain.kvc", all_logits=False),
    }
    opened = {name: load(path) for name, path in made.items()}
    yield opened
    for program in opened.values():
        program.close()


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    drawn=st.booleans(),
    most=st.integers(0, 24),
    kind=st.sampled_from(["decoder", "circle", "summing"]),
    taken=st.integers(0, 24),
    guesses=st.sampled_from([None, 1, 3, 7]),
)
def test_the_tokens_are_the_same(programs, prompt, drawn, most, kind, taken, guesses):
    asked = {"max_tokens": most} | ({"temperature": 0.7, "seed": 3} if drawn else {})
    program = programs[kind]
    with program.session() as alone, program.session(snapshots=2) as session:
        plain = generate(alone, prompt, **asked)
        run = generate(session, prompt, draft="prompt", draft_tokens=guesses, **asked)
        expected, made = list(plain), []
        for token in run:
            made.append(token)
            if len(made) == taken:
                break
        run.close()
        assert made == expected[: len(made)]
        assert len(made) == (min(taken, len(expected)) or len(expected))
        held = session.position.item()
        assert [*prompt, *made][held:] == list(run.pending)
        rest = [*run.pending, 5]
        alone.reset()
        again = list(generate(session, rest, max_tokens=3))
        assert again == list(generate(alone, [*prompt, *made, 5], max_tokens=3))


def test_what_repeats_takes_few_calls(programs):
    with programs["circle"].session() as session:
        calls = []
        call = session.call
        session.call = lambda *given, **named: (
            calls.append(given) or call(*given, **named)
        )
        run = generate(session, PROMPT, max_tokens=40, draft="prompt")
        tokens = list(run)
    assert tokens[:9] == [4, 5, 6, 7, 0, 1, 2, 3, 4]
    assert len(calls) < 24
    assert run.acceptance > 0.9


@pytest.mark.parametrize("least", [2, 4, 7])
def test_checks_of_no_fewer_tokens_are_filled(tmp_path, least):
    import torch

    table = Table(torch.tensor(repeating()))
    with load(write_table(tmp_path / "table.kvc", table, least)) as program:
        with program.session() as session:
            expected = list(generate(session, PROMPT, max_tokens=50))
        with program.session() as session:
            run = generate(session, PROMPT, max_tokens=50, draft="prompt")
            assert list(run) == expected
    assert run.accepted >= 7


def test_the_history_is_a_text_to_guess_from(programs):
    with programs["circle"].session() as session:
        session.read(np.array([[0, 1, 2, 3, 4, 5, 6, 7]]))
        run = generate(session, [0], max_tokens=6, draft="prompt", history=[*range(8)])
        assert list(run) == [1, 2, 3, 4, 5, 6]
        assert run.accepted


def test_a_program_that_cannot_check_is_named(programs):
    with (
        programs["plain"].session() as session,
        pytest.raises(UnknownName, match="--all-logits"),
    ):
        generate(session, PROMPT, draft="prompt")


def test_states_that_cannot_go_back_are_named(programs):
    with (
        programs["summing"].session() as session,
        pytest.raises(NotRewindable, match="snapshots"),
    ):
        generate(session, PROMPT, draft="prompt")


@pytest.mark.parametrize("wrong", ["text", "", 3])
def test_what_is_no_draft_is_named(programs, wrong):
    with (
        programs["decoder"].session() as session,
        pytest.raises(BadSetting, match="draft: expected a session, or 'prompt'"),
    ):
        generate(session, PROMPT, draft=wrong)


def longest(tokens, least, most):
    """Return what `_latest` returns, by trying each place."""
    best = None
    for place in range(1, len(tokens)):
        same = 0
        while same < min(most, place) and (
            tokens[place - 1 - same] == tokens[len(tokens) - 1 - same]
        ):
            same += 1
        if same >= least and (best is None or same >= best[0]):
            best = same, place
    return None if best is None else best[1]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_the_latest_of_the_longest_is_found(tokens, least, more):
    found = _latest(np.array(tokens, np.int64), least, least + more)
    assert found == longest(tokens, least, least + more)
