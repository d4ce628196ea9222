import os
import signal
import threading
from contextlib import suppress
from unittest.mock import patch

import pytest

from kvc.schema.interrupts import (
    KeptInterrupts,
    _keeper,
    check_interrupts,
    hold_interrupts,
    keeping_interrupts,
)


def interrupt(number=signal.SIGINT):
    signal.raise_signal(number)


class Finalized:
    def __del__(self):
        interrupt()


@pytest.fixture(autouse=True)
def handlers_stay_as_they_were():
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    assert after == before


def swallow():
    with suppress(BaseException):
        interrupt()


def test_an_interrupt_that_code_swallows_is_raised_at_the_end():
    with pytest.raises(KeyboardInterrupt), KeptInterrupts():
        swallow()


def test_an_interrupt_that_code_swallows_is_raised_where_it_is_checked():
    went_on = []

    @keeping_interrupts
    def work():
        swallow()
        check_interrupts()
        went_on.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not went_on


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_a_finalizer_is_raised_at_the_end():
    with pytest.raises(KeyboardInterrupt), KeptInterrupts():
        Finalized()


def test_an_interrupt_that_became_another_error_stays_one():
    @keeping_interrupts
    def work():
        try:
            interrupt()
        except KeyboardInterrupt:
            raise RuntimeError("of native code") from None

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert isinstance(raised.value.__context__, RuntimeError)


def test_contexts_within_another_end_with_the_interrupt_and_keep_it():
    @keeping_interrupts
    def work():
        with pytest.raises(KeyboardInterrupt):
            keeping_interrupts(swallow)()
        with pytest.raises(KeyboardInterrupt):
            check_interrupts()

    with pytest.raises(KeyboardInterrupt):
        work()


def test_an_interrupt_of_an_earlier_context_is_forgotten():
    with pytest.raises(KeyboardInterrupt), KeptInterrupts():
        swallow()
    with KeptInterrupts():
        check_interrupts()


def test_no_interrupt_comes_within_a_function_that_holds_them():
    steps = []

    def held():
        interrupt()
        steps.append("held")

    @keeping_interrupts
    def work():
        held()
        check_interrupts()
        steps.append("after")

    hold_interrupts(held.__code__)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["held"]


def test_whether_an_interrupt_is_held_may_depend_on_where_it_comes():
    steps = []

    def held():
        steps.append("begun")
        interrupt()
        steps.append("ended")

    hold_interrupts(held.__code__, lambda frame: frame.f_code is held.__code__)
    with pytest.raises(KeyboardInterrupt), KeptInterrupts():
        held()
    assert steps == ["begun"]


def test_a_second_interrupt_need_not_be_held():
    steps = []

    def held():
        interrupt()
        steps.append("first")
        interrupt()
        steps.append("second")

    hold_interrupts(held.__code__, lambda _: True)
    with pytest.raises(KeyboardInterrupt), KeptInterrupts():
        held()
    assert steps == ["first"]


def test_a_function_that_keeps_interrupts_ends_with_one():
    @keeping_interrupts
    def work(given):
        swallow()
        return given

    with pytest.raises(KeyboardInterrupt):
        work(1)
    assert work.__name__ == "work"


def test_what_any_handler_raises_is_kept():
    def end(number, frame):
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    with pytest.raises(SystemExit, match="143"), KeptInterrupts(), suppress(SystemExit):
        interrupt(signal.SIGTERM)
    assert signal.signal(signal.SIGTERM, before) is end


def test_a_handler_that_raises_nothing_is_called_and_nothing_is_raised():
    calls = []
    before = signal.signal(signal.SIGINT, lambda *given: calls.append(given[0]))
    with KeptInterrupts():
        interrupt()
        check_interrupts()
    assert calls == [signal.SIGINT]
    signal.signal(signal.SIGINT, before)


def test_a_handler_that_was_installed_meanwhile_stays():
    def other(number, frame):
        """Do nothing."""

    with KeptInterrupts():
        before = signal.signal(signal.SIGINT, other)
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is other
    assert before is not other


def test_a_handler_that_calls_the_one_before_it_may_outlive_a_context():
    first = signal.getsignal(signal.SIGINT)
    with KeptInterrupts():
        before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda *args: before(*args))
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            KeptInterrupts(),
            suppress(KeyboardInterrupt),
        ):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, first)


def test_an_interrupt_before_its_handler_is_there_leaves_no_context_entered():
    with (
        patch.object(_keeper, "install", side_effect=KeyboardInterrupt),
        suppress(KeyboardInterrupt),
        KeptInterrupts(),
    ):
        pytest.fail("was entered")
    with pytest.raises(KeyboardInterrupt), KeptInterrupts():
        swallow()
    with KeptInterrupts():
        check_interrupts()


def test_another_thread_is_left_alone():
    raised = []

    def work():
        try:
            with KeptInterrupts():
                check_interrupts()
        except BaseException as error:
            raised.append(error)

    @keeping_interrupts
    def beside():
        swallow()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with pytest.raises(KeyboardInterrupt):
        beside()
    assert not raised


def test_signals_from_outside_end_a_loop_that_swallows_them():
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))

    @keeping_interrupts
    def work():
        while timer.is_alive():
            with suppress(KeyboardInterrupt):
                timer.join(0.5)

    timer.start()
    with pytest.raises(KeyboardInterrupt):
        work()
