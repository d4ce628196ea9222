"""Who holds a blob: verified once, in parallel, and never waited for by a collector."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest
from data_programs import table_program, write_data_bundle

from kvc.runtime import Closed, Forked, load
from kvc.schema.container import StoredBlobs

MODES = ("map", "read", "huge")
READERS = {"map": "check", "read": "read_into", "huge": "read_into"}
OTHER = np.full(50_000, 7, np.float32)


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def opened(tmp_path, mode):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(50, other=OTHER))
    with load(path, mode) as program:
        yield program


class Gate:
    """Stands before what reads blobs; lets it go on when `wanted` are there."""

    def __init__(self, monkeypatch, mode, wanted):
        name = READERS[mode]
        self._read = getattr(StoredBlobs, name)
        self._wanted, self.blobs = threading.Barrier(wanted, timeout=60), []
        self.pause = 0
        monkeypatch.setattr(StoredBlobs, name, lambda *a: self._enter(*a))

    def _enter(self, stored, blob, *target):
        self.blobs.append(blob)
        time.sleep(self.pause)
        self._wanted.wait()
        self._read(stored, blob, *target)


def in_threads(*actions):
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_threads_that_ask_for_one_blob_check_it_once(opened, mode, monkeypatch):
    gate, seen = Gate(monkeypatch, mode, 1), []
    buffers = [opened.data["table"] for _ in range(8)]
    gate.pause = 0.1  # long enough for all of them to come
    takers = [lambda b=buffer: seen.append(b.array()[3, 3]) for buffer in buffers]
    in_threads(*takers)
    assert seen == [3] * 8
    assert gate.blobs == [0]


def test_different_blobs_are_checked_at_the_same_time(opened, mode, monkeypatch):
    gate = Gate(monkeypatch, mode, 2)
    buffers = [opened.data["table"], opened.data["other"]]
    in_threads(*[buffer.array for buffer in buffers])
    assert sorted(gate.blobs) == [0, 1]


def test_calls_check_different_constants_at_the_same_time(opened, mode, monkeypatch):
    gate = Gate(monkeypatch, mode, 2)
    resources = opened._engine._resources
    in_threads(lambda: resources.constant(0), lambda: resources.constant(1))
    assert sorted(gate.blobs) == [0, 1]
    assert opened.residency().blobs[0].handles == 1


def test_two_calls_hold_a_constant_once(opened, mode, monkeypatch):
    resources = opened._engine._resources
    in_threads(*[lambda: resources.constant(0)] * 6)
    assert opened.residency().blobs[0].handles == 1


def test_what_was_freed_is_checked_again(opened, mode, monkeypatch):
    gate = Gate(monkeypatch, mode, 1)
    for _ in range(3):
        with opened.data["table"] as buffer:
            buffer.array(), buffer.array()
    assert gate.blobs == [0, 0, 0]


def test_a_close_waits_for_a_check_that_is_under_way(opened, mode, monkeypatch):
    gate, seen = Gate(monkeypatch, mode, 2), []
    buffer = opened.data["table"]
    reading = threading.Thread(target=lambda: seen.append(buffer.array()[9, 9]))
    reading.start()
    while not gate.blobs:
        pass
    opened.close()
    gate._wanted.wait()
    reading.join(60)
    assert seen == [9]
    with pytest.raises(Closed):
        buffer.array()


def test_a_collected_handle_waits_for_nobody(opened, mode, monkeypatch):
    gate, seen = Gate(monkeypatch, mode, 2), []
    buffer, dropped = opened.data["table"], [opened.data["table"]]
    dropped.append(dropped)
    reading = threading.Thread(target=lambda: seen.append(buffer.array()[9, 9]))
    reading.start()
    while not gate.blobs:
        pass
    del dropped
    gc.collect()  # the blob's lock is held meanwhile
    gate._wanted.wait()
    reading.join(60)
    assert opened.residency().blobs[0].handles == 1


def test_a_handle_dropped_during_a_check_is_counted_out_by_the_next(opened):
    buffer, held, done = opened.data["table"], threading.Event(), threading.Event()
    lock = opened._engine._blobs._holds[0].lock

    def hold():
        with lock:
            held.set()
            assert done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    del buffer
    assert opened.residency().blobs[0].handles == 1
    done.set()
    holder.join(60)
    other = opened.data["table"]
    assert opened.residency().blobs[0].handles == 1
    other.free()


def test_a_handle_dropped_while_another_is_counted_out_is_not_forgotten(
    opened, monkeypatch
):
    """Whoever settles looks again once the lock is free: the last chance for it."""
    first, second = opened.data["table"], opened.data["table"]
    blobs, handles = opened._engine._blobs, [second]
    del second
    count_out = type(blobs)._count_out

    def slow(self, blob):
        count_out(self, blob)
        if handles:
            in_threads(handles.clear)  # drops it while this thread holds the lock

    monkeypatch.setattr(type(blobs), "_count_out", slow)
    del first
    assert opened.residency().blobs[0].handles == 0


def in_child(action):
    """Run something in a child process; return its exit code, -9 if it hangs."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = action()
        finally:
            os._exit(code)
    for _ in range(1500):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_during_a_check_is_refused_and_does_not_hang(
    opened, mode, monkeypatch
):
    gate, buffer = Gate(monkeypatch, mode, 2), opened.data["table"]
    reading = threading.Thread(target=buffer.array)
    reading.start()
    while not gate.blobs:
        pass

    def ask():
        try:
            opened.data["table"]
        except Forked:
            return 0
        return 2

    try:
        assert in_child(ask) == 0
    finally:
        gate._wanted.wait()
        reading.join(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_handle_dropped_in_a_child_waits_for_no_lock(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(50, other=OTHER))
    held, done = threading.Event(), threading.Event()
    with load(path, "map") as program:
        buffers = [program.data["table"]]
        buffers[0].array()
        lock = program._engine._blobs._memory._files[0]._lock

        def hold():
            with lock:
                held.set()
                assert done.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(60)
        try:
            assert in_child(lambda: buffers.clear() or 0) == 0
        finally:
            done.set()
            holder.join(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_the_process_is_refused_and_frees_nothing(opened):
    buffer = opened.data["table"]
    row = buffer.array()[3]
    child = os.fork()
    if not child:
        code = 1
        try:
            buffer.array()
        except Forked:
            buffer.free()
            code = 0 if row[0] == 3 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert buffer.array()[4, 4] == 4
