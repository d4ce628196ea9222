"""Rows of different lengths over rings: their counts limit a call, not the padding."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from ragged_models import (
    BATCH,
    MOST,
    RING,
    VOCAB,
    WINDOW,
    RaggedKept,
    RaggedRings,
    ragged_methods,
    ragged_specs,
)
from session_contents import contents
from state_runs import opened
from torch import Tensor

from kvc.compiler import Method
from kvc.runtime import CacheOverflow, CallTooLong, InputMismatch, Program, Session
from kvc.schema.rings import Window

LONGEST = RING - WINDOW + 1
TEXT = np.random.default_rng(8).integers(0, VOCAB, (3, MOST))


@pytest.fixture(params=["rings", "kept rings"])
def program(
    ragged: Callable[[str], Program], request: pytest.FixtureRequest
) -> Program:
    return ragged(request.param)


@cache
def logits_of(keep: int, row: int) -> np.ndarray:
    """Return the logits [MOST, vocab] after each token of a row of the text."""
    model = RaggedKept() if keep else RaggedRings()
    with torch.no_grad():
        return model.reference(torch.tensor(TEXT[row])).numpy()


def feed(session: Session, row_lengths: list[int], seq: int) -> None:
    """Give each row the next tokens of its text, and compare what comes back."""
    starts = session.position
    tokens = np.full((3, seq), 5)
    for row, (start, count) in enumerate(zip(starts, row_lengths, strict=True)):
        tokens[row, :count] = TEXT[row, start : start + count]
    if seq == 1:
        found = session.decode(tokens, np.array(row_lengths) > 0)
    else:
        found = session.prefill(tokens, np.array(row_lengths))
    ends, keep = starts + row_lengths, session.state["layers.0.k"].shape[2] - RING
    assert session.position.tolist() == ends.tolist()
    for row, count in enumerate(row_lengths):
        if count:
            expected = logits_of(keep, row)[ends[row] - 1]
            np.testing.assert_allclose(found[row], expected, rtol=2e-3, atol=2e-4)


def test_the_rings_have_windows(program: Program) -> None:
    rings = [s for s in program._engine.program.states if s.name != "position"]
    keep = rings[0].type.dims[2] - RING
    assert {s.window for s in rings} == {Window(WINDOW, keep)}


@pytest.mark.parametrize(
    "seed",
    [i if i < 3 else pytest.param(i, marks=pytest.mark.exhaustive) for i in range(60)],
)
def test_rows_go_on_and_back_each_for_itself(program: Program, seed: int) -> None:
    dice = np.random.default_rng(seed)
    with program.session(batch=3) as session:
        while max(session.position) < MOST - 40:
            seq = int(dice.choice((1, 1, 2, 5, LONGEST, LONGEST + 1, 30, 38)))
            row_lengths = [int(dice.choice((0, 1, seq, dice.integers(0, seq + 1))))
                      for _ in range(3)]  # fmt: skip
            feed(session, row_lengths, seq)
            back = [int(dice.integers(0, most + 1)) for most in session.rewindable]
            session.rewind(np.array(back) * (dice.random(3) < 0.3))


def test_padding_is_no_reason_to_split_a_call(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def split(*_: object) -> None:
        raise AssertionError("a row counts no more than a ring allows")

    monkeypatch.setattr("kvc.runtime.sessions.engine.plan_pieces", split)
    with program.session(batch=3) as session:
        feed(session, [LONGEST, 1, 0], 40)
        feed(session, [3, LONGEST, 0], 40)


def test_a_long_row_is_split_and_short_ones_with_it(program: Program) -> None:
    with program.session(batch=3) as session:
        feed(session, [40, 0, LONGEST + 1], 40)
        feed(session, [0, 33, 1], 39)
        everything = session.prefill(TEXT[:, :40])
        assert everything.shape == (3, VOCAB)
        assert session.position.tolist() == [80, 73, 40 + LONGEST + 2]


def test_a_call_that_fails_in_a_late_piece_leaves_all_rows(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvc.runtime.calls.contexts import run_bound

    calls: list[int] = []

    def run(*args: object) -> list[object]:
        calls.append(1)
        made = run_bound(*args)
        if len(calls) == 3:
            raise RuntimeError("in the third piece")
        return made

    with program.session(batch=3) as session:
        feed(session, [30, 7, 2], 30)
        before = contents(session)
        with monkeypatch.context() as patch:
            patch.setattr("kvc.runtime.calls.transactions.run_bound", run)
            with pytest.raises(RuntimeError, match="in the third piece"):
                session.prefill(TEXT[:, :40], np.array([40, 0, 20]))
        assert contents(session) == before
        feed(session, [1, 0, 40], 40)


@pytest.mark.parametrize("row_lengths", [[41, 0, 0], [-1, 40, 0], [1 << 40, 1, 1]])
def test_bad_counts_of_a_long_call_are_refused(
    program: Program, row_lengths: list[int]
) -> None:
    with program.session(batch=3) as session:
        feed(session, [5, 3, 0], 5)
        before = contents(session)
        with pytest.raises(InputMismatch, match="row lengths of 0 to 40"):
            session.prefill(TEXT[:, :40], np.array(row_lengths))
        with pytest.raises(InputMismatch, match=r"got int64\[2\]"):
            session.prefill(TEXT[:, :40], np.array([40, 40]))
        assert contents(session) == before


def test_room_is_looked_at_before_the_first_piece(program: Program) -> None:
    with program.session(batch=3, capacity=50) as session:
        feed(session, [20, 3, 0], 20)
        before = contents(session)
        with pytest.raises(CacheOverflow) as caught:
            session.prefill(TEXT[:, :40], np.array([31, 40, 40]))
        assert caught.value.facts == {
            "row": 0,
            "start": 20,
            "count": 31,
            "capacity": 50,
        }
        assert contents(session) == before
        feed(session, [30, 40, 40], 40)


def test_a_width_that_a_method_lacks_is_no_call_too_long(tmp_path: Path) -> None:
    """Only a prefill is parted; the counts of others fit, their padding does not."""

    class AllLogits(RaggedRings):
        depth = 1

        def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            last: Tensor = super().prefill(tokens, lengths)
            return last[:, None].expand(-1, tokens.shape[1], -1)

    prefill, _ = ragged_methods()
    methods = [replace(prefill, role="prefill_all")]
    specs = ragged_specs(rings=True)
    with (
        opened(AllLogits(), methods, tmp_path, states=specs) as program,
        program.session(batch=3) as session,
        pytest.raises(InputMismatch, match=r"seq in 1\.\.40.*got int64\[3, 41\]"),
    ):
        session.call("prefill", np.ones((3, 41), np.int64), np.array([1, 0, 2]))


def test_without_a_role_a_row_cannot_be_parted(tmp_path: Path) -> None:
    class OneLayer(RaggedRings):
        depth = 1

    prefill, _ = ragged_methods()
    step = Method("prefill", args=prefill.args, dynamic=prefill.dynamic)
    specs = ragged_specs(rings=True)
    with (
        opened(OneLayer(), [step], tmp_path, states=specs) as program,
        program.session(batch=3) as session,
    ):
        session.prefill(TEXT[:, :40], np.array([LONGEST, 2, 0]))
        with pytest.raises(CallTooLong) as caught:
            session.prefill(TEXT[:, :40], np.array([1, LONGEST + 1, 0]))
        assert caught.value.facts["count"] == LONGEST + 1
        assert session.position.tolist() == [LONGEST, 2, 0]


@pytest.mark.parametrize("times", [1, 2])
def test_a_method_of_other_logits_takes_no_piece(tmp_path: Path, times: int) -> None:
    class Wider(RaggedRings):
        depth = 1

        def decode(self, token: Tensor, active: Tensor) -> Tensor:
            return super().decode(token, active).repeat(1, times)

    prefill, decode = ragged_methods()
    tokens = torch.ones(3, LONGEST, dtype=torch.int64)
    sizes = {"tokens": {0: BATCH}, "lengths": {0: BATCH}}
    whole = replace(prefill, args=(tokens, prefill.args[1]), dynamic=sizes)
    specs = ragged_specs(rings=True)
    with (
        opened(Wider(), [whole, decode], tmp_path, states=specs) as program,
        program.session(batch=3) as session,
    ):
        given = TEXT[:, : LONGEST + 1], np.array([LONGEST + 1, 2, LONGEST])
        if times == 1:
            assert session.prefill(*given).shape == (3, VOCAB)
            return
        with pytest.raises(CallTooLong):
            session.prefill(*given)
        assert session.position.tolist() == [0, 0, 0]


def test_forks_and_saved_sessions_hold_rings_of_rows(
    program: Program, tmp_path: Path
) -> None:
    with program.session(batch=3) as session:
        feed(session, [30, 7, 0], 30)
        session.save(tmp_path / "rows.kvcs")
        before = contents(session)
        with session.fork() as fork, program.restore(tmp_path / "rows.kvcs") as saved:
            for other in (fork, saved):
                assert contents(other) == before
                feed(other, [0, 20, 3], 20)
                session.rewind(np.array([1, 0, 0]))
                feed(session, [1, 0, 0], 1)


def test_a_prompt_in_pieces_has_the_rows_of_its_session(ragged):
    tokens, lengths = np.ones((3, 30), np.int64), np.full(3, 30)
    with ragged("rings").session(batch=2) as session:
        with pytest.raises(InputMismatch):
            session.prefill(tokens, lengths)
        assert session.position.tolist() == [0, 0]
        session.prefill(tokens[:2], lengths[:2])
