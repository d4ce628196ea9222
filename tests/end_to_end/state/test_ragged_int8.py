"""Rows of different lengths over int8 caches, each beside a session of its own."""

from collections.abc import Iterator

import numpy as np
import pytest
from ragged_models import VOCAB, Ragged, ragged_methods, ragged_specs
from state_runs import opened

from kvc.recipes import load_recipe
from kvc.runtime import Program

TEXT = np.random.default_rng(8).integers(0, VOCAB, (3, 40))
CALLS = [(5, 1, 3), (1, 1, 0), (0, 1, 1), (0, 9, 2), (1, 0, 0), (7, 2, 12), (1, 1, 1)]


@pytest.fixture(scope="module")
def program(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[Program]:
    folder, recipe = tmp_path_factory.mktemp("int8"), load_recipe("fp32", cache="int8")
    options = {"states": ragged_specs(), "recipe": recipe}
    with opened(Ragged(), ragged_methods(), folder, **options) as program:
        yield program


def test_each_row_is_as_in_a_session_of_its_own(program: Program) -> None:
    """Rows that round the other way in another batch differ by a step of 1/127."""
    ends = np.zeros(3, np.int64)
    alone = [program.session(batch=1) for _ in ends]
    with program.session(batch=3) as session:
        for counts in map(np.array, CALLS):
            tokens = np.full((3, max(counts)), 7)
            for row, (end, count) in enumerate(zip(ends, counts, strict=True)):
                tokens[row, :count] = TEXT[row, end : end + count]
            given = (counts > 0,) if tokens.shape[1] == 1 else (counts,)
            name = "decode" if tokens.shape[1] == 1 else "prefill"
            found = session.call(name, tokens, *given)
            for row in np.flatnonzero(counts):
                expected = alone[row].prefill(tokens[row : row + 1, : counts[row]])
                np.testing.assert_allclose(
                    found[row], expected[0], rtol=0.02, atol=0.05
                )
            ends += counts
            assert session.position.tolist() == ends.tolist()
        for row, other in enumerate(alone):
            for state in ("layers.0.k", "layers.0.v"):
                mine, theirs = session.state[state][row], other.state[state][0]
                assert mine.dtype == np.int8
                assert np.abs(mine.astype(int) - theirs).max() <= 1
                assert not mine[:, ends[row] :].any()
                scales = session.state[f"{state}.scale"][row]
                np.testing.assert_allclose(
                    scales, other.state[f"{state}.scale"][0], rtol=1e-5, atol=1e-7
                )
            other.close()


def test_a_lost_token_is_noticed(program: Program) -> None:
    with program.session(batch=3) as session, program.session(batch=3) as other:
        found = session.prefill(TEXT[:, :12], np.array([12, 11, 12]))
        everything = other.prefill(TEXT[:, :12])
        away = np.abs(found - everything).max(1)
        assert (away[[0, 2]] < 1e-3).all()
        assert away[1] > 0.3
