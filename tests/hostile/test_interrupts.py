"""The judge of compilations that are interrupted, on runs that are made up."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hand_built import write_bundle
from stateful_programs import linear_program

sys.path.insert(0, str(Path(__file__).parent))

from interrupts import Interrupter

WHOLE = 0.05  # seconds


class Run:
    """A compilation that ends as it is told to once it is interrupted."""

    def __init__(self, path, log, code, write=None, says="", late=0.0):
        self._path, self._log, self._end = path, log, (code, write, says, late)
        self._told = False
        path.parent.mkdir(exist_ok=True)

    def wait(self, timeout=None):
        if not self._told and timeout is not None:
            raise subprocess.TimeoutExpired("run", timeout)
        code, write, says, late = self._end if self._told else (0, "new", "", WHOLE)
        time.sleep(late)
        if write == "new":
            write_bundle(self._path, linear_program())
        elif write is not None:
            (self._path.parent / write).write_bytes(b"half")
        self._log.write_text(says)
        return code

    def interrupt(self):
        self._told = True

    def kill(self):
        """It has ended."""


def findings(code, **end):
    one = Interrupter("made up", lambda at, log: Run(at, log, code, **end))
    one.at_moment(0.5)
    return one.findings


@pytest.mark.parametrize(
    ("code", "end"), [(130, {}), (130, {"write": "new"}), (0, {"write": "new"})]
)
def test_a_run_that_ends_with_old_or_new_files_is_right(code, end):
    assert not findings(code, **end)


@pytest.mark.parametrize(
    ("code", "end", "says"),
    [
        (-6, {"says": "terminate called"}, "it ended with -6: terminate called"),
        (130, {"says": "Traceback (most recent"}, "it says Traceback"),
        (130, {"write": "other.kvc"}, "a file is neither old nor new"),
        (130, {"write": "model.kvc"}, "a file is neither old nor new"),
        (130, {"write": ".kvc-1-0123456789abcdef.tmp"}, "tmp is left over"),
        (0, {}, "it ended with 0 and wrote nothing"),
        (0, {"write": "new", "late": 0.6}, "it went on for 0.6"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(code, end, says):
    assert any(says in one for one in findings(code, **end))
