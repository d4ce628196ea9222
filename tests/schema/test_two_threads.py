import threading

import pytest

from kvc.schema.two_threads import share


def test_each_item_is_taken_once():
    taken = []
    share(iter(range(1000)), lambda todo: taken.extend(todo))
    assert sorted(taken) == list(range(1000))


def test_two_threads_work_at_the_same_time():
    meeting = threading.Barrier(2, timeout=60)
    share(iter([1, 2]), lambda todo: (next(todo), meeting.wait()))


def test_one_thread_where_a_second_is_not_worth_it():
    threads = set()

    def work(todo):
        threads.update(threading.current_thread() for _ in todo)

    share(iter(range(10)), work, twice=False)
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("failing", ["this", "the second"])
def test_an_error_of_either_thread_comes_out_and_ends_the_other(failing):
    before = set(threading.enumerate())
    here, met = threading.current_thread(), threading.Barrier(2, timeout=60)
    taken = []

    def work(todo):
        met.wait()
        if (threading.current_thread() is here) == (failing == "this"):
            raise KeyError(failing)
        stop.wait(60)
        taken.extend(todo)

    stop = threading.Event()
    items = iter(range(10**6))
    watcher = threading.Thread(target=lambda: (drained.wait(60), stop.set()))
    drained = threading.Event()

    class Drained:
        """An iterator that tells when it is at its end."""

        def __iter__(self):
            return self

        def __next__(self):
            try:
                return next(items)
            except StopIteration:
                drained.set()
                raise

    watcher.start()
    with pytest.raises(KeyError, match=failing):
        share(Drained(), work)
    watcher.join()
    assert taken == []
    assert set(threading.enumerate()) <= before


def test_an_interrupt_here_waits_for_the_second_thread():
    here, done = threading.current_thread(), []

    def work(todo):
        if threading.current_thread() is here:
            raise KeyboardInterrupt
        done.append(sum(range(10**6)))

    with pytest.raises(KeyboardInterrupt):
        share(iter([]), work)
    assert len(done) == 1
