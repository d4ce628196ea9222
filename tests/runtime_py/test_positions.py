"""Where a session is, and how far it may go."""

import numpy as np
import pytest
from hand_built import cache_program, sized_program
from stateful_programs import (
    BATCH,
    SEQ,
    carry_program,
    linear_program,
    mixed_program,
    session_program,
)

from kvc.runtime import (
    BadSetting,
    CacheOverflow,
    NoPosition,
    StateMismatch,
    UnknownName,
)
from kvc.runtime.positions import fill_feed
from kvc.schema.feeds import Feed


def rows(count, batch=1, width=64):
    return np.ones((batch, 3, count, width), np.float32)


def test_a_capacity_chooses_the_size_of_the_states(opened):
    with opened(linear_program()) as program:
        assert program.session().capacity == 32768
        session = program.session(capacity=16)
        assert session.capacity == 16
        assert session.state["cache0"].shape == (1, 3, 16, 64)
        assert program.session(16).capacity == 16


def test_a_capacity_of_states_of_fixed_size_limits_the_position(opened):
    with opened(cache_program()) as program:
        session = program.session(capacity=3)
        assert session.capacity == 3
        assert session.state["cache"].shape == (1, 1, 8, 2)
        session.prefill(np.ones((1, 1, 2, 2), np.float32))
        with pytest.raises(CacheOverflow) as caught:
            session.prefill(np.ones((1, 1, 2, 2), np.float32))
        assert (caught.value.start, caught.value.capacity) == (2, 3)
        session.decode(np.ones((1, 1, 1, 2), np.float32))
        assert session.position == 3


@pytest.mark.parametrize("capacity", [0, -1, 9, True, 2.5, "8"])
def test_a_capacity_out_of_bounds_is_named_with_them(opened, capacity):
    with (
        opened(cache_program()) as program,
        pytest.raises(BadSetting, match=r"capacity: expected (1\.\.8|an int)"),
    ):
        program.session(capacity=capacity)


@pytest.mark.parametrize("capacity", [0, 32769])
def test_a_capacity_that_sizes_states_has_the_symbols_bounds(opened, capacity):
    with (
        opened(linear_program()) as program,
        pytest.raises(BadSetting, match=r"capacity: expected 1\.\.32768, got"),
    ):
        program.session(capacity=capacity)


def test_without_position_and_symbol_there_is_no_capacity(opened):
    from hand_built import copied_update_program

    with opened(copied_update_program()) as program:
        assert program.session().capacity is None
        with pytest.raises(UnknownName, match="capacity"):
            program.session(capacity=4)


def test_without_position_the_symbol_alone_is_chosen(opened):
    with opened(sized_program()) as program:
        session = program.session(capacity=4)
        assert session.capacity == 4
        with pytest.raises(NoPosition, match="no state of this program counts"):
            _ = session.position


def test_a_counters_position_is_a_copy(opened):
    with opened(linear_program()) as program, program.session() as session:
        session.write(rows(3))
        found = session.position
        found += 5
        assert session.position.tolist() == [3]
        assert session.position.dtype == np.int64


def test_what_does_not_fit_is_told_before_anything_runs(opened):
    with opened(mixed_program()) as program:
        session = program.session(capacity=8)
        session.run(rows(6, width=4))
        before = {name: look.copy() for name, look in session.state.items()}
        with pytest.raises(CacheOverflow) as caught:
            session.run(rows(3, width=4))
        facts = (caught.value.start, caught.value.count, caught.value.capacity)
        assert facts == (6, 3, 8)
        for name, look in session.state.items():
            assert np.array_equal(look, before[name])
        session.run(rows(2, width=4))
        assert session.position == 8


@pytest.mark.parametrize("shape", [(), (1,), (SEQ,)])
def test_the_session_fills_an_input_of_the_position(opened, shape):
    with opened(session_program(shape)) as program, program.session() as session:
        session.write(rows(3, width=2))
        told = session.write(rows(2, width=2))
        expected = {(): 3, (1,): [3], (SEQ,): [3, 4]}[shape]
        assert told.tolist() == expected
        assert session.position.tolist() == [5]
        assert session.state["cache"][0, 0, :, 0].tolist()[:6] == [1, 1, 1, 1, 1, 0]


def test_an_input_of_the_position_has_the_batch_of_the_session(opened):
    with opened(session_program((BATCH,), BATCH)) as program:
        session = program.session(batch=3)
        assert session.position.tolist() == [0, 0, 0]
        session.write(rows(4, batch=3, width=2))
        session.rewind(np.array([0, 1, 4]))
        assert session.write(rows(1, batch=3, width=2)).tolist() == [4, 3, 0]
        assert session.position.tolist() == [5, 4, 1]


@pytest.mark.parametrize(
    ("feed", "shape"),
    [
        (Feed.ONE, ()),
        (Feed.ONE, (1,)),
        (Feed.PLACES, (2,)),
        (Feed.PLACES, (3,)),
        (Feed.ROWS, (3,)),
    ],
)
def test_one_position_for_rows_that_differ_is_refused(feed, shape):
    slot = np.zeros(shape, np.int64)
    with pytest.raises(StateMismatch, match="expected one position for all rows"):
        fill_feed(slot, [1, 2], "step", feed)
    assert not slot.any()


@pytest.mark.parametrize(
    ("feed", "expected"), [(Feed.ROWS, [7, 7]), (Feed.PLACES, [7, 8])]
)
def test_as_many_rows_as_tokens_are_no_riddle(feed, expected):
    slot = np.zeros(2, np.int64)
    fill_feed(slot, [7, 7], "step", feed)
    assert slot.tolist() == expected


def test_a_position_that_is_an_input_has_a_capacity_too(opened):
    with opened(session_program((1,))) as program:
        session = program.session(capacity=4)
        session.write(rows(4, width=2))
        with pytest.raises(CacheOverflow):
            session.write(rows(1, width=2))
        assert session.position == 4
        session.reset()
        assert session.position == 0


def test_the_position_may_be_the_length_of_what_grows(opened):
    with opened(carry_program()) as program, program.session() as session:
        session.grow(rows(3))
        assert session.position.tolist() == [3]
        session.lopsided(rows(2))
        with pytest.raises(NoPosition, match="different lengths: k has 5, v has 3"):
            _ = session.position
