"""One row of a session alone: the other rows stay as they are, to the bit."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from ring_programs import ring_program
from session_contents import contents, random_rows
from stateful_programs import (
    BATCH,
    carry_program,
    linear_program,
    mixed_program,
    session_program,
)

from kvc.runtime import BadSetting, Busy, CacheOverflow, Poisoned, StateMismatch
from kvc.runtime.sessions.usage import Use
from kvc.schema.model import ResetRule, StateKind

rows = partial(random_rows, width=64)
LAYOUTS = [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)]
WAYS = [
    lambda session: session.reset_row(0),
    lambda session: session.copy_row(0, 0),
    lambda session: session.admit(0, session),
]


@pytest.fixture(params=LAYOUTS, ids=str)
def program(opened, request):
    return opened(linear_program(2, BATCH, layout=request.param, capacity=256))


def row_of(session, row):
    """What a session holds of one row."""
    return [array[row].tobytes() for array in session.state.values()]


def filled(program, batch=3, count=70, seed=0):
    """A session whose rows are at several positions."""
    session = program.session(batch=batch)
    session.write(rows(64, batch=batch))
    session.write(rows(count - 64, batch=batch))
    session.rewind(np.arange(batch))
    return session


def test_a_row_that_was_reset_is_as_a_new_one(program):
    with filled(program) as session, program.session(batch=3) as new:
        before = [row_of(session, row) for row in range(3)]
        session.reset_row(1)
        assert session.position.tolist() == [70, 0, 68]
        assert row_of(session, 1) == row_of(new, 1)
        assert [row_of(session, row) for row in (0, 2)] == [before[0], before[2]]
        session.write(rows(5, batch=3))
        assert session.position.tolist() == [75, 5, 73]


def test_a_row_is_copied_over_a_longer_and_a_shorter_one(program):
    with filled(program) as session:
        session.rewind(np.array([60, 0, 20]))
        before = [row_of(session, row) for row in range(3)]
        session.copy_row(0, 1)
        assert [row_of(session, r) for r in range(3)] == [
            before[0],
            before[0],
            before[2],
        ]
        session.copy_row(source=2, target=0)
        assert [row_of(session, r) for r in range(3)] == [
            before[2],
            before[0],
            before[2],
        ]
        assert session.position.tolist() == [48, 10, 48]


def test_a_row_of_another_session_joins_and_both_go_on(program):
    one, three = rows(9, batch=1), rows(5, batch=3)
    with filled(program) as session, program.session(batch=1) as alone:
        alone.write(one)
        before, theirs = [row_of(session, row) for row in range(3)], contents(alone)
        session.admit(2, alone)
        assert row_of(session, 2) == row_of(alone, 0)
        assert [row_of(session, row) for row in (0, 1)] == before[:2]
        assert contents(alone) == theirs
        session.write(three)
        alone.write(three[2:])
        assert row_of(session, 2) == row_of(alone, 0)
        with program.session(batch=2) as other:
            other.admit(1, session, 2)
            assert row_of(other, 1) == row_of(alone, 0)
            assert other.position.tolist() == [0, 14]
            session.admit(0, session, 2)
            assert row_of(session, 0) == row_of(alone, 0)


def test_what_is_no_session_is_not_admitted(program):
    refused = pytest.raises(BadSetting, match="other: expected a Session, got 'x'")
    with filled(program) as session, refused:
        session.admit(0, "x")


def test_what_was_admitted_goes_back_and_a_file_has_it(program, tmp_path):
    given = rows(9, batch=1)
    with program.session(batch=2) as session, program.session(batch=1) as alone:
        session.write(rows(3, batch=2))
        alone.write(given)
        session.admit(1, alone)
        session.save(tmp_path / "s")
        session.rewind(np.array([0, 4]))
        alone.rewind(4)
        assert row_of(session, 1) == row_of(alone, 0)
        with program.restore(tmp_path / "s") as again:
            assert again.position.tolist() == [3, 9]
            assert (again.state["cache0"][1, :, :9] == given[0, :, :9]).all()


def test_rows_of_forks_are_their_own(program):
    with filled(program, 3, 100) as session:
        before = contents(session)
        with session.fork() as fork, session.fork() as other:
            fork.reset_row(1)
            other.copy_row(0, 2)
            assert contents(session) == before
            assert row_of(fork, 0) == row_of(session, 0) == row_of(other, 2)
            with fork.fork() as child:
                assert contents(child) == contents(fork)
        session.reset_row(0)
        with session.fork() as fork:
            assert contents(fork) == contents(session)


def test_a_position_that_the_session_counts_is_a_rows_own(opened):
    program = opened(session_program((BATCH,), BATCH))
    with program.session(batch=2) as session, program.session(batch=1) as alone:
        session.write(rows(3, batch=2, width=2))
        alone.write(rows(5, width=2))
        session.admit(0, alone)
        assert session.position.tolist() == [5, 3]
        session.reset_row(1)
        assert session.position.tolist() == [5, 0]
        session.copy_row(0, 1)
        assert session.position.tolist() == [5, 5]
        session.write(rows(1, batch=2, width=2))


@pytest.mark.parametrize("way", WAYS)
def test_states_that_grow_have_rows_of_one_length(opened, way):
    with opened(carry_program()).session() as session:
        session.grow(rows(3))
        before = contents(session)
        with pytest.raises(StateMismatch, match="all rows of k share one length"):
            way(session)
        assert contents(session) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_state_without_an_axis_of_rows_is_named(opened, way):
    with opened(mixed_program(StateKind.PLAIN)).session() as session:
        session.run(rows(3, width=4))
        before = contents(session)
        with pytest.raises(StateMismatch, match=r"state total: .* no rows of its own"):
            way(session)
        assert contents(session) == before


@pytest.mark.parametrize("way", WAYS)
def test_one_position_for_all_rows_keeps_them_together(opened, way):
    with opened(session_program(())).session() as session:
        session.write(rows(3, width=2))
        before = contents(session)
        with pytest.raises(StateMismatch, match=r"state position: .* one position for"):
            way(session)
        assert contents(session) == before


@pytest.mark.parametrize("row", [-1, 3, 1.0, True, None, "0"])
def test_a_row_that_is_not_there_changes_nothing(opened, row):
    program = opened(linear_program(1, BATCH, capacity=256))
    with filled(program) as session, filled(program) as other:
        before = contents(session)
        for name, way in (
            ("row", lambda: session.reset_row(row)),
            ("source", lambda: session.copy_row(row, 0)),
            ("target", lambda: session.copy_row(0, row)),
            ("row", lambda: session.admit(row, other)),
            ("other_row", lambda: session.admit(0, other, row)),
        ):
            with pytest.raises(BadSetting, match=rf"^{name}: expected 0\.\.2, got"):
                way()
        assert contents(session) == before
        session.copy_row(np.int64(0), 1)


def test_a_row_of_another_program_or_size_is_refused(opened):
    program = opened(linear_program(1, BATCH))
    other = opened(linear_program(2, BATCH))
    with (
        program.session(batch=2, capacity=100) as session,
        program.session(batch=1, capacity=200) as longer,
        other.session(batch=1) as foreign,
    ):
        before = contents(session)
        with pytest.raises(BadSetting, match="other: expected a session of program"):
            session.admit(0, foreign)
        with pytest.raises(StateMismatch, match=r"cache0: .* \[3, 100, 64\]"):
            session.admit(0, longer)
        assert contents(session) == before


def test_a_row_longer_than_the_capacity_is_refused(opened):
    program = opened(ring_program())
    with program.session(capacity=4) as session, program.session() as other:
        other.run(random_rows(5, width=4)[:, :2])
        with pytest.raises(CacheOverflow):
            session.admit(0, other)
        assert session.position == 0


def test_sessions_that_cannot_be_used_are_refused(opened):
    program = opened(linear_program(1, BATCH))
    with program.session(batch=2) as session, program.session(batch=1) as other:
        other._states.poisoned = "write"
        with pytest.raises(Poisoned):
            session.admit(0, other)
        other._states.poisoned = ""
        with Use(other._usage, "write"), pytest.raises(Busy):
            session.admit(0, other)
        session.admit(0, other)


def test_changes_are_counted_and_what_is_kept_stays(opened):
    made, arrays = linear_program(1, BATCH)
    kept = replace(made.states[1], reset=ResetRule.KEEP)
    built = replace(made, states=(made.states[0], kept)), arrays
    with opened(built).session(batch=2) as session:
        session.write(rows(2, batch=2))
        session.leave_pending([[1], [2]])
        changes, cache = session.changes, session.state["cache0"].copy()
        session.reset_row(0)
        assert session.changes == changes + 1
        assert session.pending == ((), ())
        assert session.position.tolist() == [0, 2]
        assert np.array_equal(session.state["cache0"], cache)
