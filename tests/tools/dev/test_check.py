"""Steps of a check: output, and whether it passed."""

import sys

import pytest

from kvc.tools.dev.check import Step


@pytest.mark.parametrize("code", [0, 3])
def test_a_step_tells_how_it_ended_and_all_that_it_printed(code):
    text = f"print('x' * 10**6); print('the end'); raise SystemExit({code})"
    outcome = Step("much", [sys.executable, "-c", text]).wait()
    assert outcome.code == code
    assert len(outcome.output) > 10**6  # more than a pipe holds
    assert outcome.summary == "the end"
    assert outcome.seconds > 0


def test_a_step_tells_what_went_wrong():
    outcome = Step("division", [sys.executable, "-c", "1 / 0"]).wait()
    assert outcome.code == 1
    assert outcome.summary == "ZeroDivisionError: division by zero"


def test_a_signal_is_told_apart():
    text = "import os; os.kill(os.getpid(), 9)"
    assert Step("killed", [sys.executable, "-c", text]).wait().code == -9
