"""Native calls in a thread of their own."""

import os
import signal
import threading
import time

import pytest

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
