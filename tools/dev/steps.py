"""Steps of `check.py`: a command, its output, whether it passed."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Steps run side by side; two thread pools on two cores would wait for each other at
# every small operation.
SETTINGS = os.environ | {"OMP_NUM_THREADS": "1"}
# Tests start hundreds of processes, each of which would compile kvc's sources again.
SETTINGS.pop("PYTHONDONTWRITEBYTECODE", None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command.

    Attributes:
        code: that it exited with, negative for a signal.
        output: all that it printed.
        seconds: from its start.
    """

    code: int
    output: str
    seconds: float

    @property
    def summary(self) -> str:
        """Its last line, which counts tests where the command is pytest."""
        return self.output.rstrip().rpartition("\n")[2]


class Step:
    """A command that runs from the moment it is made.

    Its output goes to a file: a pipe that nobody reads yet would stop it when full.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._begun = time.perf_counter()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `wait`
        self._running = subprocess.Popen(
            command,
            cwd=ROOT,
            env=SETTINGS,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def wait(self) -> Outcome:
        """Wait for its end; once."""
        with self._output as output:
            code = self._running.wait()
            seconds = time.perf_counter() - self._begun
            output.seek(0)
            return Outcome(code, output.read().decode(errors="replace"), seconds)
