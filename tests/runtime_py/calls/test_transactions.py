"""Calls that fail: the session is as it was, or says that it is not."""

from dataclasses import replace

import numpy as np
import pytest
from session_contents import contents
from session_contents import random_rows as rows
from stateful_programs import (
    BATCH,
    SEQ,
    carry_program,
    checked_program,
    copied_program,
    linear_program,
    mixed_program,
    session_program,
)

from kvc.runtime import CacheOverflow, IndexOutOfRange, KernelFailed, Poisoned
from kvc.runtime.calls import contexts
from kvc.runtime.calls.transactions import Transaction
from kvc.schema.model import ResetRule, StateKind


class Fault:
    """Makes one step of every frame that is bound from now on fail."""

    def __init__(self, monkeypatch):
        self.step, self.error, self.afterwards = 0, RuntimeError("broken"), False
        self.steps = 0
        self._bind, self._monkeypatch = contexts.bind_graph, monkeypatch

    def arm(self, step, error=None, afterwards=False):
        self.step, self.afterwards = step, afterwards
        self.error = error or RuntimeError("broken")
        self._monkeypatch.setattr(contexts, "bind_graph", self._bind_broken)

    def disarm(self):
        self._monkeypatch.setattr(contexts, "bind_graph", self._bind)

    def _bind_broken(self, *arguments):
        frame = self._bind(*arguments)
        self.steps = len(frame.steps)
        kernel, operands = frame.steps[self.step]

        def broken(*_):
            if self.afterwards:
                kernel(*operands)
            raise self.error

        steps = list(frame.steps)
        steps[self.step] = (broken, ())
        return replace(frame, steps=tuple(steps))


@pytest.fixture
def fault(monkeypatch):
    return Fault(monkeypatch)


def fail_once(session, fault, method, given, step, error=None, afterwards=False):
    """Call a method of which one step fails, on frames of other sizes than before."""
    fault.arm(step, error, afterwards)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else Exception
    with pytest.raises(expected):
        session.call(method, given)
    fault.disarm()
    session._engine._pool._idle.clear()  # the broken frame goes


STEPS = range(7)  # of mixed_program; the plain state is written by step 4
CLEAN = IndexOutOfRange(place="", index=9, size=8)
ERRORS = [RuntimeError("broken"), KeyboardInterrupt(), CLEAN]


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", STEPS[:-1])
def test_a_failure_anywhere_leaves_the_session_as_it_was(
    opened, fault, step, error, afterwards
):
    with opened(mixed_program(None)).session() as session:
        session.run(rows(3))
        before = contents(session)
        fail_once(session, fault, "run", rows(5), step, error, afterwards)
        assert fault.steps == len(STEPS) - 1
        assert contents(session) == before
        session.run(rows(2))
        assert session.position == 5


@pytest.mark.parametrize("kind", [StateKind.PLAIN, StateKind.RING])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", STEPS)
def test_a_state_that_may_be_half_written_poisons_the_session(
    opened, fault, step, error, kind
):
    with opened(mixed_program(kind)).session() as session:
        session.run(rows(3))
        before = contents(session)
        fail_once(session, fault, "run", rows(5), step, error)
        assert fault.steps == len(STEPS)
        first_bad = 5 if error is CLEAN else 4
        if step < first_bad:
            assert contents(session) == before
            session.run(rows(2))
            return
        with pytest.raises(Poisoned, match="a call of run failed"):
            session.run(rows(2))
        with pytest.raises(Poisoned):
            session.rewind(0)
        assert session.position == 3
        session.reset()
        assert not session.state["total"].any()
        session.run(rows(2))
        assert session.position == 2


@pytest.mark.parametrize("kind", [StateKind.PLAIN, StateKind.RING])
@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", STEPS)
def test_a_transactional_session_is_never_poisoned(
    opened, fault, step, error, afterwards, kind
):
    with opened(mixed_program(kind)).session(transactional=True) as session:
        session.run(rows(3))
        before = contents(session)
        fail_once(session, fault, "run", rows(5), step, error, afterwards)
        assert contents(session) == before
        session.run(rows(2))
        assert session.position == 5


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("step", [0, 1])
def test_lengths_are_as_before_a_failure(opened, fault, step, afterwards):
    with opened(carry_program()).session() as session:
        session.grow(rows(3, 64))
        before = contents(session)
        fail_once(session, fault, "grow", rows(5, 64), step, None, afterwards)
        assert contents(session) == before
        assert not session._states.buffers[0][:, :, 3:9].any()
        assert session.grow(rows(2, 64)).shape[2] == 5


@pytest.mark.parametrize("transactional", [False, True])
def test_a_replacement_at_the_position_can_be_undone(opened, fault, transactional):
    program = opened(carry_program())
    with program.session(transactional=transactional) as session:
        fail_once(session, fault, "restart", rows(3, 64), 1)
        session.restart(rows(2, 64))
        assert session.position == 2


@pytest.mark.parametrize("transactional", [False, True])
def test_a_replacement_elsewhere_cannot_unless_it_was_empty(
    opened, fault, transactional
):
    made, arrays = carry_program()
    states = tuple(replace(state, cursor=None) for state in made.states)
    program = opened((replace(made, states=states), arrays))
    with program.session(transactional=transactional) as session:
        fail_once(session, fault, "restart", rows(3, 64), 1)
        session.restart(rows(2, 64))
        before = contents(session)
        fail_once(session, fault, "grow", rows(3, 64), 1, afterwards=True)
        assert contents(session) == before
        fail_once(session, fault, "restart", rows(3, 64), 0, afterwards=True)
        if transactional:
            assert contents(session) == before
        else:
            with pytest.raises(Poisoned, match="a call of restart"):
                session.grow(rows(1, 64))


@pytest.mark.parametrize("transactional", [False, True])
def test_a_whole_copy_over_what_lies_before_the_position_cannot_be_undone(
    opened, fault, transactional
):
    program = opened(copied_program())
    with program.session(transactional=transactional) as session:
        session.write(rows(3, 2))
        before = contents(session)
        fail_once(session, fault, "write", rows(2, 2), 0)
        assert contents(session) == before
        fail_once(session, fault, "write", rows(2, 2), 2, afterwards=True)
        if transactional:
            assert contents(session) == before
        else:
            with pytest.raises(Poisoned, match="a call of write"):
                session.write(rows(1, 2))


@pytest.mark.parametrize("step", [0, 1])
def test_a_position_that_the_session_counts_is_as_before(opened, fault, step):
    with opened(session_program((SEQ,))).session() as session:
        session.write(rows(3, 2))
        before = contents(session)
        fail_once(session, fault, "write", rows(4, 2), step, afterwards=True)
        assert contents(session) == before
        assert session.write(rows(2, 2)).tolist() == [3, 4]


def test_rows_of_a_batch_are_put_back_each_from_its_own_end(opened, fault):
    program = opened(linear_program(1, BATCH))
    with program.session(batch=2) as session:
        session.write(rows(40, 64, batch=2))
        session.rewind(np.array([0, 30]))
        before = contents(session)
        fail_once(session, fault, "write", rows(9, 64, batch=2), 1, afterwards=True)
        assert contents(session) == before


def test_an_interrupt_while_results_are_copied_takes_the_call_back(opened, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with opened(mixed_program(None)).session() as session:
        session.run(rows(3))
        before = contents(session)
        monkeypatch.setattr(contexts, "own_copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(rows(3))
        monkeypatch.undo()
        assert contents(session) == before


def test_an_interrupt_after_a_plain_state_was_written_poisons(opened, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with opened(mixed_program()).session() as session:
        monkeypatch.setattr(contexts, "own_copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(rows(3))
        monkeypatch.undo()
        with pytest.raises(Poisoned):
            session.run(rows(1))


@pytest.mark.parametrize("built", [carry_program(), session_program((1,))])
def test_an_interrupt_just_after_a_call_was_counted_takes_it_back(
    opened, monkeypatch, built
):
    commit = Transaction.commit

    def interrupted(transaction):
        commit(transaction)
        raise KeyboardInterrupt

    with opened(built).session() as session:
        method, width = ("grow", 64) if "k" in session.state else ("write", 2)
        session.call(method, rows(3, width))
        before = contents(session)
        monkeypatch.setattr(Transaction, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.call(method, rows(2, width))
        monkeypatch.undo()
        assert contents(session) == before
        session.call(method, rows(1, width))


def test_an_interrupt_while_a_failure_is_handled_poisons(opened, fault, monkeypatch):
    from kvc.runtime.states.host import HostStore

    def interrupted(*_):
        raise KeyboardInterrupt

    with opened(mixed_program(None)).session(transactional=True) as session:
        session.run(rows(3))
        monkeypatch.setattr(HostStore, "write", interrupted)
        fail_once(session, fault, "run", rows(5), 3, KeyboardInterrupt())
        with pytest.raises(Poisoned):
            session.run(rows(1))


def test_a_poisoned_session_loses_kept_states_too(opened, fault):
    made, arrays = mixed_program()
    kept = replace(made.states[3], reset=ResetRule.KEEP)
    program = opened((replace(made, states=(*made.states[:3], kept)), arrays))
    with program.session() as session:
        session.run(rows(3))
        session.reset()
        assert session.state["total"].any()
        fail_once(session, fault, "run", rows(5), 4)
        session.reset()
        assert not session.state["total"].any()


def test_a_check_that_fails_has_written_nothing(opened):
    table, cache = np.ones((2, 4), np.float32), np.ones((1, 2, 4), np.float32)
    with opened(checked_program()).session() as session:
        for index in ([0, 8], [-9, 0]):
            with pytest.raises(IndexOutOfRange) as caught:
                session.put(np.array(index), table)
            said = "method put, instruction 0, kvc::check_index at c:1: index"
            assert str(caught.value).startswith(said)
        with pytest.raises(CacheOverflow) as overflow:
            session.rows(np.array([7]), cache)
        facts = {"row": 0, "start": 7, "count": 2, "capacity": 8}
        assert overflow.value.facts == facts
        with pytest.raises(IndexOutOfRange):
            session.rows(np.array([-1]), cache)
        assert not session.state["table"].any()
        assert not session.state["cache"].any()
        session.put(np.array([-1, 0]), table)
        session.rows(np.array([6]), cache)
        assert session.state["cache"][0, :, 0].tolist() == [1] * 8


def test_a_failing_kernel_is_still_named(opened, fault):
    with opened(mixed_program(None)).session() as session:
        fault.arm(3)
        with pytest.raises(KernelFailed, match="run, instruction 3, aten::sum"):
            session.run(rows(2))
