"""States that grow: their lengths give methods their sizes."""

import numpy as np
import pytest
from hand_built import write_bundle
from stateful_programs import carry_program

from kvc.runtime import CacheOverflow, InputMismatch, StateMismatch, load


@pytest.fixture
def program(tmp_path):
    with load(write_bundle(tmp_path / "c.kvc", carry_program())) as opened:
        yield opened


@pytest.fixture
def session(program):
    with program.session() as opened:
        yield opened


def rows(*values):
    made = np.array(values, np.float32).reshape(1, 1, -1, 1)
    return np.broadcast_to(made, (1, 3, len(values), 64)).copy()


def column(array):
    assert (array == array[:, :1, :, :1]).all()
    return array[0, 0, :, 0].tolist()


def test_what_grows_begins_empty_and_holds_what_was_appended(session):
    assert session.state["k"].shape == (1, 3, 0, 64)
    assert column(session.grow(rows(1, 2))) == [1, 2]
    assert column(session.grow(rows(3))) == [1, 2, 3]
    assert column(session.state["v"]) == [1, 2, 3]
    assert column(session.grow(rows(4, 5, 6))) == [1, 2, 3, 4, 5, 6]


def test_every_length_gives_the_same_as_concatenation(session):
    total = np.zeros((1, 3, 1, 64), np.float32)
    for token in range(40):
        total += rows(token)
        session.grow(rows(token))
        assert np.array_equal(session.sums(rows(0)), total)


def test_returned_values_are_copies(session):
    session.grow(rows(1))[:] = 9
    assert column(session.grow(rows(2))) == [1, 2]


def test_a_replacement_is_all_that_there_is(session):
    session.grow(rows(1, 2, 3))
    session.restart(rows(7, 8))
    assert column(session.state["k"]) == [7, 8]
    assert column(session.grow(rows(9))) == [7, 8, 9]
    session.restart(rows(*range(10)))
    assert column(session.state["v"]) == list(range(10))


def test_reset_makes_it_empty(session):
    session.grow(rows(1, 2))
    session.reset()
    assert session.state["k"].shape[2] == 0
    assert session.position == 0
    assert column(session.grow(rows(5))) == [5]


def test_states_that_need_one_symbol_must_agree(session):
    session.grow(rows(1))
    session.lopsided(rows(2))
    with pytest.raises(StateMismatch) as caught:
        session.grow(rows(3))
    text = "method grow, state v: expected length 2, found length 1"
    assert str(caught.value) == text
    assert column(session.state["k"]) == [1, 2]


def test_a_wrong_input_is_still_told_as_one(session):
    with pytest.raises(InputMismatch, match="input x"):
        session.grow(np.ones((1, 3, 65, 64), np.float32))
    with pytest.raises(InputMismatch, match="input x"):
        session.grow(np.ones((1, 2, 1, 64), np.float32))


def test_it_grows_to_its_capacity_and_no_further(program):
    with program.session(capacity=4) as session:
        session.grow(rows(1, 2, 3))
        with pytest.raises(CacheOverflow) as caught:
            session.grow(rows(4, 5))
        facts = (caught.value.start, caught.value.count, caught.value.capacity)
        assert facts == (3, 2, 4)
        assert column(session.grow(rows(4))) == [1, 2, 3, 4]
        with pytest.raises(CacheOverflow):
            session.lopsided(rows(5))
        with pytest.raises(CacheOverflow):
            session.restart(rows(1, 2, 3, 4, 5))
        assert column(session.state["k"]) == [1, 2, 3, 4]


def test_a_capacity_limits_what_has_more_memory(tmp_path):
    path = write_bundle(tmp_path / "f.kvc", carry_program(16))
    with load(path) as program, program.session(capacity=4) as session:
        assert session._states.buffers[0].shape[2] == 16
        session.restart(rows(1, 2, 3))
        for call in (session.grow, session.lopsided):
            with pytest.raises(CacheOverflow) as caught:
                call(rows(4, 5))
            assert caught.value.capacity == 4
        with pytest.raises(CacheOverflow):
            session.restart(rows(1, 2, 3, 4, 5))
        session.grow(rows(4))


def test_two_sessions_have_lengths_of_their_own(program):
    with program.session() as a, program.session() as b:
        a.grow(rows(1, 2))
        b.grow(rows(8))
        assert column(a.grow(rows(3))) == [1, 2, 3]
        assert column(b.grow(rows(9))) == [8, 9]


def test_an_append_writes_only_the_new_rows(session):
    look = session._states.buffers[0]
    session.grow(rows(1, 2, 3))
    look[:, :, 1] = 7
    session.grow(rows(4))
    assert column(session.state["k"]) == [1, 7, 3, 4]


def test_growing_does_not_move_or_copy(session):
    address = session._states.buffers[0].ctypes.data
    for token in range(30):
        session.grow(rows(token))
    assert session.state["k"].ctypes.data == address
