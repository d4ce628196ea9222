"""A second thread works ahead, but not far, and leaves errors to who needs the item."""

import threading

import pytest

from kvc.runtime.delegates.xnnpack.provider import ahead_of


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not come to that")


def test_it_is_two_items_ahead_at_the_most():
    done = []
    with ahead_of(range(5), done.append) as next_item:
        wait_for(lambda: done == [0, 1])
        threading.Event().wait(0.05)
        assert done == [0, 1]
        next_item()
        wait_for(lambda: done == [0, 1, 2])


def test_nothing_is_done_once_nobody_needs_it():
    done, go_on = [], threading.Event()

    def work(item):
        done.append(item)
        go_on.wait()

    with ahead_of(range(5), work):
        wait_for(lambda: done == [0])
        threading.Timer(0.05, go_on.set).start()
    assert done == [0]


def test_errors_are_left_to_who_needs_the_item():
    done = []

    def work(item):
        done.append(item)
        raise ValueError

    with ahead_of(range(5), work):
        wait_for(lambda: done == [0])
    assert done == [0]


def test_without_threads_nothing_is_done_ahead(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    with ahead_of(range(5), done.append) as next_item:
        next_item()
    assert done == []
