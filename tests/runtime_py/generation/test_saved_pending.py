"""Saved after an answer, restored, and continued: as if it had never been saved."""

import pytest
from drafting_models import write_decoder
from summing_rows import summing_rows

from kvc.runtime import generate, load

PROMPT, MORE = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [7, 8]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with load(write_decoder(tmp_path_factory.mktemp("saved") / "m.kvc")) as opened:
        yield opened


@pytest.mark.parametrize("stop", [{}, {"stop_tokens": range(32)}])
def test_one_row_goes_on_from_what_is_pending(program, tmp_path, stop):
    with program.session() as session:
        answer = generate(session, PROMPT, max_tokens=5, **stop)
        made = list(answer)
        assert session.pending == (answer.pending,)
        assert len(answer.pending) == 1
        session.save(tmp_path / "s")
        with program.restore(tmp_path / "s") as again:
            more = generate(again, [*again.pending[0], *MORE], max_tokens=6)
            told = list(more)
        assert told == list(generate(session, [*answer.pending, *MORE], max_tokens=6))
    with program.session() as session:
        whole = [*PROMPT, *(made or answer.pending), *MORE]
        assert told == list(generate(session, whole, max_tokens=6))


def test_an_answer_that_was_left_or_whose_generation_is_gone(program, tmp_path):
    with program.session() as session:
        token = next(generate(session, PROMPT))
        assert session.pending == ((token,),)
        session.save(tmp_path / "s")
    with program.restore(tmp_path / "s") as again:
        assert again.pending == ((token,),)


def test_each_row_of_a_batch_goes_on(tmp_path):
    summing_rows(tmp_path / "rows.kvc")
    prompts = [[3], [1, 2, 3, 4, 5], [9, 8]]
    with load(tmp_path / "rows.kvc") as rows, rows.session(batch=3) as session:
        answer = generate(session, prompts, max_tokens=4, stop_tokens=[2, 11])
        answer.texts()
        assert session.pending == answer.pending
        session.save(tmp_path / "s")
        with rows.restore(tmp_path / "s") as again:
            more = [[*pending, 5] for pending in again.pending]
            told = generate(again, more, max_tokens=4).texts()
        more = [[*pending, 5] for pending in answer.pending]
        assert told == generate(session, more, max_tokens=4).texts()


@pytest.mark.parametrize("taken", [1, 3, 4, 6, 12])
def test_a_session_and_its_draft_go_on(program, tmp_path, taken):
    """Saved while the session is ahead of the tokens that were handed out, too."""
    with program.session() as session, program.session() as draft:
        answer = generate(session, PROMPT, draft=draft, draft_tokens=4, max_tokens=12)
        for _ in range(taken):
            token = next(answer)
        session.save(tmp_path / "s")
        draft.save(tmp_path / "d")
        assert session.pending == ((token,),) == (answer.pending,)
        answer.close()
        assert session.pending == ((token,),)
    with (
        program.restore(tmp_path / "s") as again,
        program.restore(tmp_path / "d") as guesser,
        program.session() as other,
    ):
        start = [*again.pending[0], *MORE]
        told = list(generate(again, start, draft=guesser, max_tokens=6))
        whole = [*PROMPT, *answer.tokens, *MORE]
        assert told == list(generate(other, whole, max_tokens=6))


def test_who_uses_the_session_meanwhile_takes_what_was_pending(program):
    with program.session() as session:
        answer = generate(session, PROMPT)
        next(answer)
        session.rewind(1)
        assert session.pending == ((),)
        answer.close()
        assert session.pending == ((),)
