"""Steps of `check.py`: a command that runs, what it printed, whether it passed.

A step of tests that failed is given a second run, of the failed tests alone and with
nothing beside them. Tests of threads, signals and memory can fail by what else the
machine does; one that passes then is named, with its first traceback, and does not
throw away the whole run. A test that fails twice, an error while collecting and a
crash of pytest stay failures.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTEST = [sys.executable, "-m", "pytest"]
TESTS_FAILED = 1  # pytest's exit code: all were collected and run, some failed
MOST_FAILURES = 10  # more than these are not chance
# Steps run side by side; two thread pools on two cores would wait for each other at
# every small operation.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command.

    Attributes:
        code: that it exited with, negative for a signal.
        output: all that it printed.
        seconds: from its start.
        failed: ids of tests, where the command is pytest and could say them.
    """

    code: int
    output: str
    seconds: float
    failed: Sequence[str] = ()

    @property
    def summary(self) -> str:
        """Its last line, which counts tests where the command is pytest."""
        return self.output.rstrip().rpartition("\n")[2]


class Step:
    """A command that runs from the moment it is made.

    Its output goes to a file: a pipe that nobody reads yet would stop it when full.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path = ROOT) -> None:
        self.name = name
        self._begun = time.perf_counter()
        self._files = tempfile.TemporaryDirectory()
        self._output = Path(self._files.name, "output")
        with self._output.open("wb") as output:
            self._running = subprocess.Popen(
                [*command, *self._options(Path(self._files.name))],
                cwd=folder,
                env=ONE_THREAD,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> Outcome:
        """Wait for its end; once."""
        with self._files as files:
            code = self._running.wait()
            seconds = time.perf_counter() - self._begun
            output = self._output.read_text(errors="replace")
            return Outcome(code, output, seconds, self._failed(Path(files)))

    def _options(self, files: Path) -> Sequence[str]:
        return ()

    def _failed(self, files: Path) -> Sequence[str]:
        return ()


class Tests(Step):
    """A run of pytest, with a cache of its own that knows which tests failed."""

    def __init__(self, name: str, tests: Sequence[str], folder: Path = ROOT) -> None:
        super().__init__(name, [*PYTEST, *tests], folder)

    def _options(self, files: Path) -> Sequence[str]:
        return ["-o", f"cache_dir={files / 'cache'}"]

    def _failed(self, files: Path) -> Sequence[str]:
        path = files / "cache" / "v" / "cache" / "lastfailed"
        return list(json.loads(path.read_text())) if path.exists() else []


def second_run(name: str, first: Outcome, folder: Path = ROOT) -> Outcome | None:
    """Run the failed tests of a step again.

    Returns:
        what came of it, with code 0 only if pytest counts every one of them as passed;
        None where there is no second run.
    """
    if first.code != TESTS_FAILED or not 0 < len(first.failed) <= MOST_FAILURES:
        return None
    second = Tests(name, first.failed, folder).wait()
    if re.match(rf"{len(first.failed)} passed\b", second.summary):
        return second
    return replace(second, code=second.code or TESTS_FAILED)
