"""`Program.release`: memory that no running call needs goes, and comes back."""

import threading
import weakref
from contextlib import suppress

import numpy as np
import pytest
from data_programs import table_program, write_data_bundle
from delegated_partitions import delegated_program
from fake_backends import backend_of
from hand_built import affine_program, cache_program, write_bundle
from resident_memory import LINUX, resident_within

from kvc.runtime import Closed, DigestMismatch, FileChanged, load
from kvc.runtime.calls.contexts import FRAMES_KEPT, ContextPool, ExecutionContext
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.execution.delegate import Handle

MIB = 1 << 20
MODES = ("map", "read", "huge")


@LINUX
@pytest.mark.parametrize("mode", MODES)
def test_the_memory_of_all_weights_goes(tmp_path, mode):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(16384))
    with load(path, mode) as program:
        first = program.total()
        table = span_of(program, "table")
        assert resident_within(*table) >= 63 * MIB
        program.release()
        assert resident_within(*table) <= 8 * MIB
        assert np.array_equal(program.total(), first)
        assert resident_within(*span_of(program, "table")) >= 63 * MIB


def span_of(program, name):
    """Return the address of named data where the last call read it, and its bytes."""
    with program.data[name] as buffer:
        return buffer.array().ctypes.data, buffer.nbytes


def test_the_next_call_checks_again(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(4))
    with load(path, "read") as program:
        expected = program.total()
        stored = program._engine._blobs._memory._stored
        checked = []
        read_into = stored.read_into
        stored.read_into = lambda blob, target: (
            checked.append(blob),
            read_into(blob, target),
        )
        program.total()
        assert checked == []
        program.release()
        assert np.array_equal(program.total(), expected)
        assert checked == [0]


def test_a_file_that_changed_meanwhile_is_found(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(4))
    with load(path, "read") as program:
        program.total()
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(b"\7")
        program.total()
        program.release()
        with pytest.raises((FileChanged, DigestMismatch)):
            program.total()


def test_sessions_keep_their_states(tmp_path):
    rows = np.ones((1, 1, 1, 2), np.float32)
    with load(write_bundle(tmp_path / "c.kvc", cache_program())) as program:
        session = program.session()
        session.decode(rows)
        program.release()
        session.decode(2 * rows)
        assert session.position == 2
        assert session.state["cache"][0, 0, :3, 0].tolist() == [1, 2, 0]
        program.release()
        assert session.look()[0, 0, 1, 0] == 3


def test_users_keep_their_data(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(40))
    with load(path) as program, program.data["table"] as buffer:
        program.total()
        array = buffer.array()
        program.release()
        assert array[7, 7] == buffer.array()[7, 7] == 7
        assert program.residency().blobs[0].handles == 1


def test_constants_and_what_was_prepared_go_even_if_somebody_looks_at_them(tmp_path):
    with load(write_bundle(tmp_path / "a.kvc", affine_program())) as program:
        program.forward(np.ones((2, 4), np.float32))
        resources = program._engine._resources
        buffers = [buffer for buffer, _ in resources._constants.values()]
        resources._prepared["a weight"] = "packed"
        program.release()
        assert buffers
        assert all(buffer.freed for buffer in buffers)
        assert not resources._prepared


def test_a_handle_that_another_call_made_first_is_freed_at_once(tmp_path):
    with load(write_bundle(tmp_path / "a.kvc", affine_program())) as program:
        resources, made = program._engine._resources, []
        handle = resources._buffers.handle

        def slower(name):
            mine = handle(name)
            made.append(mine)
            if len(made) == 1:
                resources.constant(name)  # as another thread would
            return mine

        resources._buffers.handle = slower
        resources.constant(0)
        assert len(made) == 2
        assert sum(buffer.freed for buffer in made) == 1


def test_contexts_and_what_is_bound_go(tmp_path):
    x = np.ones((2, 4), np.float32)
    with load(write_bundle(tmp_path / "a.kvc", affine_program())) as program:
        expected = program.forward(x)
        (idle,) = program._engine._pool._idle
        gone = weakref.ref(idle.scratch)
        del idle
        program.release()
        assert gone() is None
        assert np.array_equal(program.forward(x), expected)


class Counting(Handle):
    """A backend that tells how many of its handles are open, and can be held up."""

    open = 0
    entered = threading.Event()
    gate = threading.Event()

    def __init__(self, partition, data):
        type(self).open += 1

    def prepare(self, inputs, outputs, workspace, sizes):
        def run():
            self.entered.set()
            assert self.gate.wait(30)

        return run

    def close(self):
        type(self).open -= 1


@pytest.fixture
def counting(monkeypatch):
    backend = type("Counting", (Counting,), {})
    backend.entered, backend.gate = threading.Event(), threading.Event()
    backend.gate.set()
    monkeypatch.setitem(DELEGATES, "xnnpack", backend_of(backend))
    return backend


@pytest.fixture
def delegated(tmp_path, counting):
    with load(write_bundle(tmp_path / "d.kvc", delegated_program())) as program:
        yield program


X = np.ones((2, 4), np.float32)


def test_delegates_are_closed_and_made_again(delegated, counting):
    delegated.forward(X)
    delegated.forward(X)
    assert counting.open == 1
    delegated.release()
    assert counting.open == 0
    delegated.forward(X)
    assert counting.open == 1
    delegated.close()
    assert counting.open == 0


def test_a_running_call_keeps_what_it_uses_until_it_ends(delegated, counting):
    counting.gate.clear()
    running = threading.Thread(target=lambda: delegated.forward(X))
    running.start()
    assert counting.entered.wait(30)
    delegated.release()
    delegated.release()
    assert counting.open == 1
    counting.gate.set()
    delegated.forward(X)
    running.join(30)
    assert counting.open == 1  # that of the second call
    delegated.release()
    assert counting.open == 0


def test_closing_waits_for_calls_on_what_was_released(delegated, counting):
    counting.gate.clear()
    running = threading.Thread(target=lambda: delegated.forward(X))
    running.start()
    assert counting.entered.wait(30)
    delegated.release()
    delegated.close()
    stored = delegated._engine._blobs._memory._stored
    assert counting.open == 1
    assert stored.files[0].fd >= 0
    counting.gate.set()
    running.join(30)
    assert counting.open == 0
    assert stored.files[0].fd < 0


def test_users_are_refused_while_the_last_call_still_runs(delegated, counting):
    counting.gate.clear()
    buffer = delegated.data["scale"]
    running = threading.Thread(target=lambda: delegated.forward(X))
    running.start()
    assert counting.entered.wait(30)
    delegated.close()
    with pytest.raises(Closed):
        buffer.array()
    assert delegated._engine._resources.constant(0).tolist() == [1, 2, 3, -4]
    counting.gate.set()
    running.join(30)
    assert counting.open == 0


def test_a_closed_program_has_nothing_to_release(delegated):
    delegated.close()
    with pytest.raises(Closed):
        delegated.release()


@pytest.mark.parametrize("mode", MODES)
def test_calls_and_releases_go_on_beside_each_other(tmp_path, mode):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(64))
    program, results = load(path, mode), []

    def call():
        with suppress(Closed):
            for _ in range(150):
                row = program.row(np.array([9]))
                results.append(row[0, 5])
        results.append(9)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for _ in range(50):
        program.release()
    program.close()
    for caller in callers:
        caller.join(30)
    assert set(results) == {9}


def context():
    return ExecutionContext(None, 64, 0)


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
    keys = [(number, (), None, None) for number in range(FRAMES_KEPT + 1)]
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
    key = (0, (), states, None)
    one = pool.take(states)
    one.keep(key, "old")
    pool.put_back(one, states)
    states.closed = True
    pool.forget_closed()
    assert one.served is None
    assert one.take(key) is None


def test_a_context_forgets_what_was_closed_while_it_was_lent():
    pool, states = ContextPool(context), Closable()
    key = (0, (), states, None)
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
