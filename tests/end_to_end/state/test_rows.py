"""Rows of a batch with positions of their own, each as one alone would be."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cached_models import BATCH, SLOTS, VOCAB, OneLayer, Rows, row_methods
from state_runs import opened

from kvc.compiler import Dim
from kvc.compiler.request.spec import StateSpec
from kvc.runtime import BadSetting, CacheOverflow, Program

CAPACITY = Dim("capacity", 4, SLOTS)
SPECS = [
    StateSpec("[kv]", axis=2, capacity=CAPACITY, batch=BATCH),
    StateSpec("position", batch=BATCH),
]
TEXT = np.random.default_rng(4).integers(0, VOCAB, (4, SLOTS))


@pytest.fixture(scope="module")
def program(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("rows")
    with opened(Rows(), row_methods(), folder, states=SPECS) as program:
        yield program


def check(found: np.ndarray, rows: list[list[int]]) -> None:
    """Assert that the last logits of each row are those of its tokens alone."""
    for row, tokens in enumerate(rows):
        with torch.no_grad():
            expected = OneLayer().reference(torch.tensor([tokens])).numpy()
        last = expected[0, -found.shape[1] :]
        np.testing.assert_allclose(found[row], last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_every_batch_gives_what_its_rows_give_alone(
    program: Program, batch: int
) -> None:
    with program.session(batch=batch, capacity=9) as session:
        text = TEXT[:batch, :9]
        check(session.prefill(text[:, :5]), text[:, :5].tolist())
        for i in range(5, 9):
            check(session.decode(text[:, i : i + 1]), text[:, : i + 1].tolist())
        assert session.position.tolist() == [9] * batch
        with pytest.raises(CacheOverflow):
            session.decode(text[:, :1])


def test_rows_go_back_by_counts_of_their_own(program: Program) -> None:
    random = np.random.default_rng(1)
    rows: list[list[int]] = [[], [], []]
    with program.session(batch=3) as session:
        for _ in range(12):
            tokens = random.integers(0, VOCAB, (3, random.integers(1, 5)))
            name = "decode" if tokens.shape[1] == 1 else "prefill"
            for row, added in zip(rows, tokens.tolist(), strict=True):
                row += added
            check(session.call(name, tokens), rows)
            counts = [int(random.integers(0, min(4, len(row)))) for row in rows]
            session.rewind(np.array(counts))
            rows = [row[: len(row) - n] for row, n in zip(rows, counts, strict=True)]
            assert session.position.tolist() == [len(row) for row in rows]
            for i, row in enumerate(rows):
                assert not session.state["k"][i, :, len(row) :].any()


def test_one_row_that_is_full_stops_them_all_before_any_write(
    program: Program,
) -> None:
    with program.session(batch=3, capacity=6) as session:
        session.prefill(TEXT[:3, :6])
        session.rewind(np.array([2, 0, 1]))
        before = session.state["k"].copy()
        with pytest.raises(CacheOverflow) as caught:
            session.decode(TEXT[:3, :1])
        assert (caught.value.row, caught.value.start) == (1, 6)
        assert session.position.tolist() == [4, 6, 5]
        assert np.array_equal(session.state["k"], before)
        session.rewind(np.array([0, 1, 0]))
        found = session.decode(TEXT[:3, 40:41])
        rows = [
            [*TEXT[i, :n].tolist(), int(TEXT[i, 40])] for i, n in enumerate([4, 5, 5])
        ]
        check(found, rows)


@pytest.mark.parametrize("counts", [[7, 0, 0], [0, -1, 0], [1, 1], [1.0, 1.0, 1.0]])
def test_a_row_cannot_go_back_beyond_its_start(
    program: Program, counts: list[int]
) -> None:
    with program.session(batch=3) as session:
        session.prefill(TEXT[:3, :6])
        with pytest.raises(BadSetting):
            session.rewind(np.array(counts))
        assert session.position.tolist() == [6, 6, 6]


def test_saved_rows_come_back_where_they_were(program: Program, tmp_path) -> None:
    with program.session(batch=3, capacity=8) as session:
        session.prefill(TEXT[:3, :6])
        session.rewind(np.array([2, 0, 1]))
        session.save(tmp_path / "rows.kvcs")
    with program.restore(tmp_path / "rows.kvcs") as session:
        assert session.capacity == 8
        assert session.position.tolist() == [4, 6, 5]
        rows = [
            [*TEXT[i, :n].tolist(), int(TEXT[i, 40])] for i, n in enumerate([4, 6, 5])
        ]
        check(session.decode(TEXT[:3, 40:41]), rows)
