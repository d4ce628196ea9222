"""The bytes of a row are known before it runs: those that the system gives it."""

import numpy as np
import pytest
from hand_built import write_bundle
from session_contents import random_rows
from stateful_programs import BATCH, linear_program

from kvc.runtime import load
from kvc.serving.scheduling.memory import RowMemory


@pytest.fixture
def opened(tmp_path):
    with load(
        write_bundle(tmp_path / "m.kvc", linear_program(2, BATCH, capacity=256))
    ) as program:
        yield program


@pytest.mark.linux
@pytest.mark.parametrize("count", [1, 20, 64, 200])
def test_what_is_foretold_is_what_a_row_takes(opened, count):
    with opened.session() as session, RowMemory(opened.session()) as memory:
        for start in range(0, count, 64):
            session.write(random_rows(min(64, count - start), width=64))
        found = session.residency().own
        assert found == memory.nbytes(count)


def test_the_tokens_that_fit_are_the_most_that_do(opened):
    with RowMemory(opened.session()) as memory:
        check_most(memory)


def check_most(memory):
    sizes = [memory.nbytes(count) for count in range(257)]
    assert sizes == sorted(sizes)
    for nbytes in (0, sizes[1] - 1, sizes[1], sizes[100], sizes[256], 1 << 40):
        most = memory.most_tokens(nbytes, 256)
        fits = np.flatnonzero(np.array(sizes) <= nbytes)
        assert most == (int(fits[-1]) if fits.size else 0)
