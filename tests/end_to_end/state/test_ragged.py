"""Rows that bring different numbers of tokens to a call: each is as the row alone.

What padding holds never matters, a row may stop while others go on, and a row that
counts nothing stays as it was to the byte.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from ragged_models import (
    BATCH,
    RAGGED,
    SLOTS,
    VOCAB,
    Ragged,
    RaggedWhereTold,
    alone,
    ragged_methods,
    ragged_specs,
)
from session_contents import contents
from state_runs import opened

from kvc.compiler import Method
from kvc.runtime import (
    BadSetting,
    CacheOverflow,
    CallMismatch,
    InputMismatch,
    Program,
    Session,
)
from kvc.runtime.calls.contexts import run_bound
from kvc.schema.errors import CompileError
from kvc.schema.model import StateKind

Programs = Callable[[str], Program]
KINDS = ("state", "told", "branches", "xnnpack")
TEXT = np.random.default_rng(8).integers(0, VOCAB, (4, SLOTS))
QUICK = {(1, 2, 3), (5, 1, 3), (3, 0, 5), (0, 0, 2)}


@pytest.fixture
def program(ragged: Programs) -> Program:
    return ragged("state")


def padded(rows: Sequence[Sequence[int]], garbage: int = 0) -> np.ndarray:
    """Return rows of tokens as one array, padded after their ends."""
    found = np.full((len(rows), max(1, *map(len, rows))), garbage)
    for row, tokens in enumerate(rows):
        found[row, : len(tokens)] = tokens
    return found


class Rows:
    """A session, and the tokens that each of its rows should hold."""

    def __init__(
        self, session: Session, rows: int, model: type[Ragged] = Ragged
    ) -> None:
        self.session, self.held, self.model = session, [()] * rows, model

    def feed(self, new: Sequence[Sequence[int]], garbage: int = 0) -> None:
        """Give each row tokens, and compare what comes back; one each is decoded."""
        tokens, row_lengths = padded(new, garbage), np.array(list(map(len, new)))
        if tokens.shape[1] == 1:
            found = self.session.decode(tokens, row_lengths > 0)
        else:
            found = self.session.prefill(tokens, row_lengths)
        self.held = [(*old, *more) for old, more in zip(self.held, new, strict=True)]
        for row, logits in enumerate(found):
            if new[row]:
                expected = alone(self.model, self.held[row])
                np.testing.assert_allclose(logits, expected, rtol=2e-3, atol=2e-4)
        self.check()

    def rewind(self, row_lengths: Sequence[int]) -> None:
        self.session.rewind(np.array(row_lengths))
        pairs = zip(self.held, row_lengths, strict=True)
        self.held = [tokens[: len(tokens) - n] for tokens, n in pairs]
        self.check()

    def check(self) -> None:
        """Assert that the session is where its rows are, and dead slots are zeros."""
        assert self.session.position.tolist() == list(map(len, self.held))
        for name, held in self.session.state.items():
            if name != "position":
                for row, tokens in enumerate(self.held):
                    assert not held[row, :, len(tokens) :].any(), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "lengths",
    [
        lengths
        if lengths in QUICK
        else pytest.param(lengths, marks=pytest.mark.exhaustive)
        for lengths in itertools.product((0, 1, 2, 3, 5), repeat=3)
    ],
    ids=str,
)
def test_rows_of_all_lengths_are_as_rows_alone(
    ragged: Programs, kind: str, lengths: tuple[int, ...]
) -> None:
    with ragged(kind).session(batch=3) as session:
        rows = Rows(session, 3, RAGGED[kind])
        rows.feed([TEXT[i, :n].tolist() for i, n in enumerate(lengths)], 7)
        for stop in ((), (1,), (0, 2), (), (0, 1, 2)):
            rows.feed([[] if i in stop else [i + 3] for i in range(3)], 9)
        rows.rewind([len(tokens) // 2 for tokens in rows.held])
        rows.feed([TEXT[i, n : 2 * n + i].tolist() for i, n in enumerate(lengths)], 11)


def test_the_states_are_at_the_position(ragged: Programs) -> None:
    for program in map(ragged, KINDS):
        caches = [s for s in program._engine.program.states if s.name != "position"]
        assert all(s.at_position and s.kind is StateKind.LINEAR for s in caches)
        methods = program._engine.program.methods
        assert [
            (m.input_names[m.row_lengths or 0], str(m.advance)) for m in methods
        ] == [
            ("lengths", "seq"),
            ("active", "1"),
        ]


def test_left_out_counts_are_all_tokens_of_all_rows(program: Program) -> None:
    with program.session(batch=2) as short, program.session(batch=2) as told:
        tokens = TEXT[:2, :6]
        first = short.prefill(tokens)
        assert np.array_equal(first, told.prefill(tokens, np.array([6, 6])))
        with program.session(batch=2) as other:
            assert np.array_equal(first, other.prefill(tokens, None))
        again = short.decode(token=tokens[:, :1])
        assert np.array_equal(again, told.decode(tokens[:, :1], np.array([True] * 2)))
        assert contents(short) == contents(told)


def test_torch_tensors_count_as_arrays_do(program: Program) -> None:
    with program.session(batch=2) as session:
        found = session.prefill(torch.tensor(TEXT[:2, :4]), torch.tensor([4, 2]))
        assert isinstance(found, torch.Tensor)
        assert session.position.tolist() == [4, 2]


@pytest.mark.parametrize("kind", ["state", "told", "branches"])
def test_a_row_that_counts_nothing_stays_as_it_was(ragged: Programs, kind: str) -> None:
    with ragged(kind).session(batch=3) as session:
        rows = Rows(session, 3, RAGGED[kind])
        rows.feed([[1, 2, 3], [4], [5, 6]])
        before = {name: held[1].tobytes() for name, held in session.state.items()}
        for _ in range(3):
            rows.feed([[1], [], [2]])
            rows.feed([[3, 4], [], []])
        after = {name: held[1].tobytes() for name, held in session.state.items()}
        assert after == before


def test_nothing_counts_in_any_row(program: Program) -> None:
    with program.session(batch=2) as session:
        rows = Rows(session, 2)
        rows.feed([[1, 2, 3], [4]])
        before = contents(session)
        rows.feed([[], []])
        session.prefill(TEXT[:2, :5], np.array([0, 0]))
        assert contents(session) == before


@pytest.mark.parametrize("kind", ["state", "told", "branches"])
def test_padding_does_not_limit_a_row_that_is_nearly_full(
    ragged: Programs, kind: str
) -> None:
    with ragged(kind).session(batch=2) as session:
        rows = Rows(session, 2, RAGGED[kind])
        rows.feed([TEXT[0, :40].tolist(), [1]])
        rows.feed([TEXT[0, 40:60].tolist(), [2]])
        rows.feed([TEXT[0, 60:64].tolist(), TEXT[1, :30].tolist()])
        rows.feed([[], [3]])
        before = contents(session)
        for row_lengths in ([1, 30], [2, 0]):
            with pytest.raises(CacheOverflow) as caught:
                session.prefill(TEXT[:2, :30], np.array(row_lengths))
            facts = {"row": 0, "start": 64, "count": row_lengths[0], "capacity": 64}
            assert caught.value.facts == facts
            assert contents(session) == before


@pytest.mark.parametrize(
    "row_lengths", [[4, -1], [6, 1], [1 << 40, 0], [-(1 << 62), 2]]
)
def test_counts_out_of_range_are_refused_before_anything_is_written(
    program: Program, row_lengths: list[int]
) -> None:
    with program.session(batch=2) as session:
        session.prefill(TEXT[:2, :3])
        before = contents(session)
        with pytest.raises(InputMismatch) as caught:
            session.prefill(TEXT[:2, :5], np.array(row_lengths))
        bad = next(i for i, n in enumerate(row_lengths) if not 0 <= n <= 5)
        assert caught.value.facts == {
            "method": "prefill",
            "input": "lengths",
            "expected": "row lengths of 0 to 5, the tokens of this call",
            "found": f"{row_lengths[bad]} in row {bad}",
        }
        assert contents(session) == before


@pytest.mark.parametrize(
    ("row_lengths", "text"),
    [
        (np.array([1]), r"got int64\[1\]"),
        (np.array([1, 1, 1]), r"got int64\[3\]"),
        (np.array([[1, 1]]), r"got int64\[1, 2\]"),
        (np.array(1), r"got int64\[\]"),
        (np.array([True, False]), r"got bool\[2\]"),
        (np.array([1, 1], np.int32), r"got int32\[2\]"),
        (np.array([1.0, 1.0]), r"got float64\[2\]"),
        pytest.param(object(), "got a Python object", id="object"),
    ],
    ids=str,
)
def test_counts_of_another_kind_are_refused(
    program: Program, row_lengths: object, text: str
) -> None:
    with program.session(batch=2) as session:
        with pytest.raises(InputMismatch, match=text):
            session.prefill(TEXT[:2, :5], row_lengths)
        assert session.position.tolist() == [0, 0]


def test_only_the_counts_may_be_left_out(program: Program) -> None:
    with program.session(batch=2) as session:
        with pytest.raises(CallMismatch, match="tokens: missing"):
            session.prefill(lengths=np.array([1, 1]))
        with pytest.raises(CallMismatch, match="tokens: expected a tensor, got None"):
            session.prefill(None)
        with pytest.raises(InputMismatch, match="input tokens"):
            session.prefill(TEXT[:3, :2])


def run_and_fail(*args: object) -> None:
    """Do all that a call does, and fail before it is counted."""
    run_bound(*args)
    raise RuntimeError("after all")


def test_a_call_that_fails_leaves_every_row_as_it_was(program: Program) -> None:
    with program.session(batch=3) as session:
        rows = Rows(session, 3)
        rows.feed([[1, 2, 3], [4], [5, 6]])
        before = contents(session)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kvc.runtime.calls.transactions.run_bound", run_and_fail)
            with pytest.raises(RuntimeError, match="after all"):
                session.prefill(TEXT[:3, :5], np.array([5, 0, 2]))
        assert contents(session) == before
        rows.feed([[7], [], [8]])


def test_rows_go_back_by_their_own_counts_or_not_at_all(program: Program) -> None:
    with program.session(batch=3) as session:
        rows = Rows(session, 3)
        rows.feed([[1, 2, 3], [4], [5, 6]])
        for row_lengths in ([1, 2, 0], [0, 0, 3], 2):
            with pytest.raises(BadSetting, match="count: expected"):
                session.rewind(np.array(row_lengths) if row_lengths != 2 else 2)
        rows.rewind([1, 0, 2])
        rows.feed([[7, 8], [9, 1], [2]], 5)


@pytest.mark.parametrize("kind", ["state", "told"])
def test_forks_and_saved_sessions_hold_every_row(
    ragged: Programs, kind: str, tmp_path: Path
) -> None:
    program = ragged(kind)
    with program.session(batch=3) as session:
        rows = Rows(session, 3, RAGGED[kind])
        rows.feed([TEXT[0, :30].tolist(), [4], [5, 6]])
        session.save(tmp_path / "rows.kvcs")
        with session.fork() as fork, program.restore(tmp_path / "rows.kvcs") as saved:
            assert contents(fork) == contents(saved) == contents(session)
            for other in (fork, saved):
                copied = Rows(other, 3, RAGGED[kind])
                copied.held = list(rows.held)
                copied.feed([[], [1, 2, 3], [4]])
                copied.rewind([20, 1, 0])
                with other.fork() as grandchild:
                    last = Rows(grandchild, 3, RAGGED[kind])
                    last.held = list(copied.held)
                    last.feed([[1], [], [2]])
        rows.feed([[7], [8], []])


def test_trim_gives_back_what_lies_behind_each_row(program: Program) -> None:
    with program.session(batch=3) as session:
        rows = Rows(session, 3)
        rows.feed([TEXT[0, :40].tolist(), TEXT[1, :40].tolist(), [3]])
        rows.rewind([0, 39, 0])
        before = contents(session)
        session.trim()
        assert contents(session) == before
        rows.feed([[1], [2, 3], []])
        session.reset()
        rows.held = [(), (), ()]
        rows.feed([[1], [2, 3], []])


def test_a_bool_cannot_count_many_tokens(tmp_path: Path) -> None:
    tokens = torch.ones(3, 4, dtype=torch.int64)
    sizes = {"token": {0: BATCH}, "active": {0: BATCH}}
    method = Method("decode", args=(tokens, tokens[:, 0] == 1), dynamic=sizes)
    with pytest.raises(CompileError, match="by the bool input 'active'"):
        opened(Ragged(), [method], tmp_path, states=ragged_specs()).__enter__()


class Unevenly(RaggedWhereTold):
    """Writes the caches of its last layer by other counts."""

    depth = 2

    def run(
        self, tokens: torch.Tensor, start: torch.Tensor, row_lengths: torch.Tensor
    ) -> torch.Tensor:
        x = self.layers[0](self.embed(tokens), start, row_lengths)
        return self.layers[1](x, start, row_lengths // 2)[:, 0]


def test_one_method_has_one_input_of_counts(tmp_path: Path) -> None:
    methods, specs = ragged_methods(True)[:1], ragged_specs(True)
    with pytest.raises(CompileError, match="but not all of them with those of one"):
        opened(Unevenly(), methods, tmp_path, states=specs).__enter__()
