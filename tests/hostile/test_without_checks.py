"""Checks that are taken out: one that a test guards, and those that none does."""

import json
import subprocess
import sys
from pathlib import Path

from forked_batches import Limits, answers
from removed_checks import ROOT, checks_of, without
from resident_memory import LINUX

from kvc.schema.errors import BadProgram
from kvc.schema.verify.limits import Reporter

COMMAND = Path(__file__).with_name("without_checks.py")
GUARD = "tests/schema/verify/test_states.py::test_a_growing_state_starts_empty"
pytestmark = LINUX


def _refuses():
    try:
        Reporter("x").text("\x1b", "here")
    except BadProgram:
        return True
    return False


def test_a_check_that_is_taken_out_refuses_no_more_in_that_process():
    path = ROOT / "schema/verify/limits.py"
    (check,) = (one for one in checks_of(path) if "cannot be printed" in one.name)

    def ask(_):
        before = _refuses()
        without(check)
        return [[before, _refuses()]]

    found = list(answers(ask, range(1), Limits(seconds=60, nbytes=16 << 30)))

    assert found == [(0, [True, False])]
    assert _refuses()


def test_the_command_tells_checks_that_a_test_guards_from_others(tmp_path):
    def run(*options):
        command = [sys.executable, COMMAND, tmp_path, *options]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    noted = run("--note", GUARD)
    assert noted.returncode == 0, noted.stdout + noted.stderr
    tried = run("--only", "_check_initial")
    assert tried.returncode == 1, tried.stderr
    found = json.loads((tmp_path / "checks.json").read_text())["found"]
    ((guarded, _),) = (item for item in found.items() if item[1] == "a test fails")
    assert "a growing state starts empty" in guarded
    assert set(found.values()) == {"a test fails", "it never refuses"}
    assert tried.stdout.count("it never refuses") == len(found) - 1 == 2
    page = tmp_path / "CHECKS.md"
    assert run("--page", str(page)).returncode == 0
    assert "| a test fails | 1 |" in page.read_text()
