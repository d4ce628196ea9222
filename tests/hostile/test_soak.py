"""A small share of the soak, and whether it sees what is wrong."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from flatness import TOLERANCE, sample, steeper
from ragged_models import opened_ragged
from resident_memory import LINUX
from session_plays import Kind
from session_rounds import Bench

from kvc.runtime import Session

THREADS, OPERATIONS = 2, 30
FLAT = dict.fromkeys(TOLERANCE, 1000)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soak")
    with opened_ragged("kept rings", folder) as program, ExitStack() as stack:
        kind = Kind(vocab=16, longest=30, rows=4)
        yield Bench("kept rings", kind, program.path, stack)


@pytest.fixture
def one_round(bench):
    with ThreadPoolExecutor(THREADS) as threads:
        yield lambda: bench.run_round("1", threads, THREADS, OPERATIONS)


def in_a_thread():
    return threading.current_thread() is not threading.main_thread()


def test_threads_give_what_one_thread_gives(one_round):
    did, findings = one_round()
    assert findings == []
    assert [len(done) for done in did] == [OPERATIONS] * THREADS
    assert len({one.what for done in did for one in done}) > 8
    assert sum(one.steps for done in did for one in done) > 50


def test_a_result_that_only_threads_give_is_found(one_round, monkeypatch):
    call = Session.call

    def changed(self, name, *args):
        result = call(self, name, *args)
        return np.nextafter(result, 9) if in_a_thread() else result

    monkeypatch.setattr(Session, "call", changed)
    _, findings = one_round()
    assert len(findings) == THREADS
    assert "together" in findings[0]


def test_a_rewind_that_does_nothing_in_threads_is_found(one_round, monkeypatch):
    rewind = Session.rewind
    monkeypatch.setattr(Session, "rewind", lambda *args: in_a_thread() or rewind(*args))
    assert one_round()[1]


def test_an_error_that_no_play_runs_into_is_found(one_round, monkeypatch):
    def fails(self):
        raise RuntimeError("no fork")

    monkeypatch.setattr(Session, "fork", fails)
    _, findings = one_round()
    assert [one for one in findings if "RuntimeError: no fork" in one]


def test_what_grows_over_the_whole_run_is_steep():
    leak = [FLAT | {"resident": n << 20} for n in range(50)]
    assert steeper(leak) == {"resident": 30 << 20}
    assert steeper([FLAT | {"descriptors": n // 8} for n in range(50)]).keys() == {
        "descriptors"
    }


def test_what_is_taken_at_first_or_now_and_then_is_flat():
    warm_up = [
        FLAT | {"threads": min(n, 8), "maps": 100 * min(n, 8)} for n in range(50)
    ]
    assert steeper(warm_up) == {}
    peaks = [FLAT | {"shared": (n % 7 == 0) << 20} for n in range(50)]
    assert steeper(peaks) == {}
    assert steeper([FLAT]) == {}


@LINUX
def test_a_sample_sees_descriptors_maps_and_threads():
    """Of many, as something of another test may end meanwhile."""
    many, before, wait = 20, sample(), threading.Event()
    descriptors = [os.memfd_create("kept") for _ in range(many)]
    threads = [threading.Thread(target=wait.wait) for _ in range(many)]
    for thread in threads:
        thread.start()
    after = sample()
    wait.set()
    for thread in threads:
        thread.join()
    for descriptor in descriptors:
        os.close(descriptor)
    for kind in ("descriptors", "threads", "maps"):
        assert after[kind] > before[kind] + many // 2
    assert after.keys() == TOLERANCE.keys()
