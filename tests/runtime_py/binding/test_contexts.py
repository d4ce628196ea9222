"""Contexts: leased one at a time, frames kept and dropped."""

import threading
from contextlib import suppress

import numpy as np
import pytest
from hand_built import affine_program, cache_program, write_bundle

from kvc.runtime import Closed, load
from kvc.runtime.binding.contexts import FRAMES_KEPT, ContextPool, ExecutionContext


def context():
    return ExecutionContext(64, 0)


class Closable:
    closed = False


def test_a_context_is_used_again():
    pool = ContextPool(context)
    first = pool.take(None)
    pool.put_back(first, None)
    assert pool.take(None) is first


def test_two_calls_at_a_time_have_two_contexts():
    pool = ContextPool(context)
    assert pool.take(None) is not pool.take(None)


def test_the_context_that_served_a_session_last_is_preferred():
    pool = ContextPool(context)
    a, b = Closable(), Closable()
    served_a, served_b = pool.take(a), pool.take(b)
    pool.put_back(served_a, a)
    pool.put_back(served_b, b)
    assert pool.take(a) is served_a
    pool.put_back(served_a, a)
    assert pool.take(b) is served_b


def test_the_least_recent_frame_goes_first():
    one = context()
    keys = [(number, (), None) for number in range(FRAMES_KEPT + 1)]
    for key in keys[:-1]:
        one.keep(key, key[0])
    assert one.frame(keys[0]) == 0
    one.keep(keys[-1], FRAMES_KEPT)
    assert one.frame(keys[1]) is None
    assert one.frame(keys[0]) == 0


def test_a_frame_of_another_version_can_only_be_taken():
    one, key = context(), (0, (), None)
    one.keep(key, "old", (1,))
    assert one.frame(key, (2,)) is None
    assert one.frame(key, (1,)) == "old"
    assert one.take(key) == "old"
    assert one.frame(key, (1,)) is None
    assert one.take(key) is None


def test_frames_of_closed_states_are_forgotten():
    pool, states = ContextPool(context), Closable()
    key = (0, (), states)
    one = pool.take(states)
    one.keep(key, "old")
    pool.put_back(one, states)
    states.closed = True
    pool.forget_closed()
    assert one.served is None
    assert one.take(key) is None


def test_a_context_forgets_what_was_closed_while_it_was_lent():
    pool, states = ContextPool(context), Closable()
    key = (0, (), states)
    one = pool.take(states)
    one.keep(key, "old")
    states.closed = True
    pool.put_back(one, states)
    assert one.served is None
    assert one.take(key) is None


def test_closing_waits_for_calls_that_still_run():
    pool, drained = ContextPool(context), []
    first, second = pool.take(None), pool.take(None)
    pool.close(lambda: drained.append(1))
    pool.put_back(first, None)
    assert not drained
    pool.put_back(second, None)
    assert drained == [1]


def test_a_closed_pool_lends_nothing_and_keeps_nothing():
    pool, drained = ContextPool(context), []
    idle, lent = pool.take(None), pool.take(None)
    pool.put_back(idle, None)
    pool.close(lambda: drained.append(1))
    assert pool.take(None) is None
    pool.put_back(lent, None)
    assert pool._idle == []
    assert pool.take(None) is None


def test_a_program_closed_during_a_call_lets_it_finish(tmp_path):
    path = write_bundle(tmp_path / "a.kvc", affine_program())
    program, finished = load(path), []
    x = np.ones((4, 4), np.float32)
    expected = program.forward(x)

    def run():
        with suppress(Closed):
            for _ in range(200):
                assert np.array_equal(program.forward(x), expected)
        finished.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    program.close()
    thread.join()
    assert finished == [True]


@pytest.mark.parametrize("explicit", [True, False])
def test_a_session_that_ends_gives_its_frames_back(tmp_path, explicit):
    path = write_bundle(tmp_path / "c.kvc", cache_program())
    with load(path) as program:
        session = program.session()
        session.look()
        (idle,) = program._engine._pool._idle
        assert idle.served is not None
        if explicit:
            session.close()
        del session
        assert idle.served is None
