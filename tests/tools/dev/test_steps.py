import sys

import pytest

from kvc.tools.dev import steps

# Fails as often as it is told, then passes.
PASSES_AT_LAST = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("how", ["[a::b] c"])
def test_that_waits(how):
    count = Path("count")
    left = int(count.read_text())
    count.write_text(str(left - 1))
    assert left <= 0

def test_that_passes():
    pass
"""
DIES = "import os\n\ndef test_dies():\n    os.kill(os.getpid(), 11)\n"


def run_twice(folder, text):
    """Both runs of a file of tests."""
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -q -p no:hypothesispytest\n"
    )
    (folder / "test_it.py").write_text(text)
    first = steps.Tests("tests", [], folder).wait()
    return first, steps.second_run("again", first, folder)


def test_a_test_that_passes_in_its_second_run_is_named(tmp_path):
    (tmp_path / "count").write_text("1")
    first, second = run_twice(tmp_path, PASSES_AT_LAST)
    assert first.code == 1
    assert "assert left <= 0" in first.output
    assert first.failed == ["test_it.py::test_that_waits[[a::b] c]"]
    assert second.code == 0
    assert second.summary.startswith("1 passed")


def test_a_test_that_fails_twice_fails(tmp_path):
    (tmp_path / "count").write_text("2")
    first, second = run_twice(tmp_path, PASSES_AT_LAST)
    assert len(first.failed) == 1
    assert second.code == 1


def test_a_second_run_that_skips_the_test_fails(tmp_path):
    (tmp_path / "count").write_text("1")
    text = PASSES_AT_LAST.replace("    assert", "    left or pytest.skip()\n    assert")
    _, second = run_twice(tmp_path, text)
    assert "1 skipped" in second.summary
    assert second.code == 1


@pytest.mark.parametrize("text", [DIES, "import nothing_of_this_name\n"])
def test_a_crash_and_an_error_of_collecting_have_no_second_run(tmp_path, text):
    first, second = run_twice(tmp_path, text)
    assert first.code not in {0, 1}
    assert second is None


def test_many_failures_have_no_second_run(tmp_path):
    many = steps.MOST_FAILURES + 1
    text = "".join(f"def test_{i}():\n    assert not {i + 1}\n" for i in range(many))
    first, second = run_twice(tmp_path, text)
    assert first.code == 1
    assert len(first.failed) == many
    assert second is None


def test_a_command_that_is_no_pytest_has_no_second_run():
    text = "print('x' * 10**6); 1 / 0"  # more than a pipe holds
    first = steps.Step("division", [sys.executable, "-c", text]).wait()
    assert first.code == 1
    assert len(first.output) > 10**6
    assert steps.second_run("again", first) is None


def test_a_pytest_that_cannot_start_has_no_second_run(tmp_path):
    first = steps.Tests("tests", ["--no-such-option"], tmp_path).wait()
    assert first.code == 4
    assert steps.second_run("again", first) is None
