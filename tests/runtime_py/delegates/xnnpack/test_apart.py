"""Native calls in a thread of their own."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kvc.runtime.delegates.xnnpack import apart
from kvc.runtime.delegates.xnnpack.apart import call_apart


def test_it_returns_what_the_function_returns():
    assert call_apart(lambda: 7) == 7


def test_the_function_runs_where_no_signal_is_handled():
    seen = []
    call_apart(lambda: seen.append(threading.current_thread()) or 0)
    assert seen[0] is not threading.main_thread()


def test_an_interrupt_waits_until_the_function_has_returned():
    ended = []

    def slow():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        ended.append(True)
        return 0

    with pytest.raises(KeyboardInterrupt):
        call_apart(slow)
    assert ended == [True]


def test_what_the_function_raises_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        call_apart(lambda: 1 // 0)


INTERRUPTED = """
import faulthandler, random, signal, time
from kvc.runtime.delegates.xnnpack.apart import (call_apart)

class Interrupt(Exception):
    pass

def handle(*_):
    if armed:
        raise Interrupt

def work():
    global running
    running = True
    end = time.monotonic() + 0.002
    while time.monotonic() < end:
        pass
    running = False
    return 0

faulthandler.dump_traceback_later(30, exit=True)
armed = running = False
signal.signal(signal.SIGALRM, handle)
interrupted = 0
end = time.monotonic() + 2
while time.monotonic() < end:
    armed = True
    try:
        first = random.uniform(3e-5, 4e-4)
        signal.setitimer(signal.ITIMER_REAL, first, random.choice((0, 2e-4)))
        call_apart(work)
    except Interrupt:
        armed = False
        interrupted += 1
        assert not running, "an interrupt escaped"
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    while running:
        time.sleep(0.001)
    time.sleep(0.001)  # what has been started too late would begin now
    assert not running, "it began after all"
assert interrupted > 5, interrupted
"""


@pytest.mark.exhaustive  # chance decides where they come
def test_interrupts_at_any_moment_neither_escape_nor_stop_it_for_ever():
    command = [sys.executable, "-c", INTERRUPTED]
    subprocess.run(command, check=True, timeout=300)


def test_an_interrupt_of_the_wait_is_raised_at_the_end_the_first_of_all(monkeypatch):
    class Interrupted:
        """A lock, of which each of the first waits is interrupted."""

        def __init__(self):
            self._lock, self._left = threading.Lock(), [1, 2, 3]
            self._first = True

        def acquire(self):
            if self._first:  # by the call itself, before anything is started
                self._first = False
            elif self._left:
                raise KeyboardInterrupt(self._left.pop(0))
            return self._lock.acquire()

        def release(self):
            self._lock.release()

    monkeypatch.setattr(apart, "allocate_lock", Interrupted)
    ended = []
    with pytest.raises(KeyboardInterrupt) as caught:
        call_apart(lambda: time.sleep(0.05) or ended.append(True) or 0)
    assert caught.value.args == (1,)
    assert ended == [True]


def test_without_a_thread_nothing_is_called_and_that_is_said(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(apart, "start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        call_apart(lambda: 0)


def test_a_handlers_error_that_looks_like_a_missing_thread_waits_too(monkeypatch):
    """It may come when the thread runs already."""
    real, begun, ended = apart.start_new_thread, threading.Event(), []

    def start(*arguments):
        real(*arguments)
        begun.wait()
        raise RuntimeError("of a handler")

    def slow():
        begun.set()
        time.sleep(0.05)
        ended.append(True)
        return 0

    monkeypatch.setattr(apart, "start_new_thread", start)
    with pytest.raises(RuntimeError, match="of a handler"):
        call_apart(slow)
    assert ended == [True]
