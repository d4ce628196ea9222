"""Rows that leave and join a running batch: each is as in a session of its own."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from ragged_models import BATCH, VOCAB, Ragged, ragged_methods, ragged_specs
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Method, StateSpec
from kvc.recipes import load_recipe
from kvc.runtime import Program, Session, StateMismatch

Programs = Callable[[str], Program]
TEXT = np.random.default_rng(5).integers(0, VOCAB, (6, 40))


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Iterator[Program]:
    folder, recipe = tmp_path_factory.mktemp("int8"), load_recipe("fp32", cache="int8")
    options = {"states": ragged_specs(), "recipe": recipe}
    with opened(Ragged(), ragged_methods(), folder, **options) as program:
        yield program


def row_of(session: Session, row: int) -> list[bytes]:
    """Return what a session holds of one row."""
    return [array[row].tobytes() for array in session.state.values()]


def step(session: Session, texts: Sequence[int]) -> np.ndarray:
    """Feed each row the next token of its text."""
    places = session.position
    tokens = np.array([[TEXT[t, p]] for t, p in zip(texts, places, strict=True)])
    return session.decode(tokens, np.ones(len(texts), bool))


def prefilled(program: Program, text: int, count: int) -> Session:
    """Return a session of one row that has read the beginning of a text."""
    session = program.session(batch=1)
    for start in range(0, count, 5):
        end = min(count, start + 5)
        session.prefill(TEXT[text : text + 1, start:end], np.array([end - start]))
    return session


@pytest.mark.parametrize("kind", ["state", "told", "rings", "kept rings", "int8"])
def test_rows_join_leave_and_are_copied_as_if_alone(
    ragged: Programs, int8: Program, kind: str
) -> None:
    """The rings have gone round long before."""
    program = int8 if kind == "int8" else ragged(kind)
    singles = {text: prefilled(program, text, 3 + 4 * text) for text in range(6)}
    with program.session(batch=3) as session:
        texts = [0, 1, 2]
        for row, text in enumerate(texts):
            session.admit(row, singles[text])
        for turn in range(16):
            before = [row_of(session, row) for row in range(3)]
            if turn == 4:
                session.admit(1, singles[4])
                texts[1] = 4
                assert [row_of(session, r) for r in (0, 2)] == before[::2]
            if turn == 7:
                session.copy_row(0, 2)
                texts[2] = 0
                assert [row_of(session, r) for r in (0, 1)] == before[:2]
            if turn == 9:
                session.reset_row(0)
                singles[3].reset()
                texts[0] = 3
                assert [row_of(session, r) for r in (1, 2)] == before[1:]
            found = step(session, texts)
            alone = {text: step(singles[text], [text]) for text in set(texts)}
            for row, text in enumerate(texts):
                assert session.position[row] == singles[text].position[0]
                np.testing.assert_allclose(
                    found[row], alone[text][0], rtol=1e-4, atol=1e-4
                )
        most = session.rewindable
        session.rewind(most)
        for row, text in enumerate(texts):
            single = singles[text]
            assert most[row] == single.rewindable[0]
            single.rewind(min(most[row], single.position[0]))
            if text not in texts[:row]:
                assert session.position[row] == single.position[0]
    for single in singles.values():
        single.close()


class Recurrent(nn.Module):
    """A state [batch, 4] that each call overwrites, and one that adds up."""

    h: Tensor
    total: Tensor

    def __init__(self, total: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Linear(8, 4)
        self.register_buffer("h", torch.zeros(1, 4))
        self.register_buffer("total", total)

    def step(self, x: Tensor) -> Tensor:
        """Take x float32 [batch, 4]."""
        self.h.copy_(torch.tanh(self.mix(torch.cat([self.h, x], 1))))
        alike = self.total.dim() == 2
        self.total.add_(self.h if alike else self.h.sum(0))
        return self.h + self.total


METHODS = [Method("step", args=(torch.zeros(2, 4),), dynamic={"x": {0: BATCH}})]


def test_recurrent_states_with_rows_are_taken_row_by_row(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    specs, model = [StateSpec("*", batch=BATCH)], Recurrent(torch.zeros(1, 4))
    with (
        opened(model, METHODS, tmp_path, states=specs) as program,
        program.session(batch=3) as session,
        program.session(batch=1) as alone,
    ):
        for given in x[:3]:
            session.step(given)
            alone.step(given[:1] + 1)
        before = [row_of(session, row) for row in range(3)]
        session.admit(2, alone)
        session.reset_row(1)
        assert row_of(session, 0) == before[0]
        assert not any(state[1].any() for state in session.state.values())
        assert row_of(session, 2) == row_of(alone, 0)
        for given in x[3:]:
            found = session.step(given)
            np.testing.assert_allclose(found[2:], alone.step(given[2:]), atol=1e-6)
        session.copy_row(2, 0)
        assert row_of(session, 0) == row_of(session, 2)


def test_a_state_that_all_rows_share_is_named(tmp_path: Path) -> None:
    specs, model = [StateSpec("h", batch=BATCH)], Recurrent(torch.zeros(4))
    with (
        opened(model, METHODS, tmp_path, states=specs) as program,
        program.session(batch=4) as session,
    ):
        session.step(np.ones((4, 4), np.float32))
        before = [state.tobytes() for state in session.state.values()]
        with pytest.raises(StateMismatch, match="total has no rows of its own"):
            session.reset_row(1)
        assert [state.tobytes() for state in session.state.values()] == before
