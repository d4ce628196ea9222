"""Run all checks that a commit must pass: `python tools/dev/check.py`.

With `--fast`, only what takes seconds: format, lint, schema, types, and the tests of
the architecture. The same command runs by hand and in CI. With `--fast` it stops at the
first check that fails, and prints that check's output. Without `--fast`, types, all
tests and the wheel are checked side by side after format, lint and schema, and all
failures are reported.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Steps run side by side: two thread pools on two cores would wait for each other at
# every small operation.
SETTINGS = os.environ | {"OMP_NUM_THREADS": "1"}
PYTHON = sys.executable
QUICK = {
    "format": [PYTHON, "-m", "ruff", "format", "--check", "."],
    "lint": [PYTHON, "-m", "ruff", "check", "."],
    "schema": [PYTHON, "tools/dev/gen_schema.py", "--check"],
    "links": [PYTHON, "tools/dev/link_types.py"],
}
TYPES = [PYTHON, "-m", "mypy", "-p", "kvc"]  # takes a minute without mypy's cache
# All tests include these.
ARCHITECTURE = [PYTHON, "-m", "pytest", "tests/test_architecture.py"]
FAST = QUICK | {"types": TYPES, "architecture": ARCHITECTURE}
WHOLE, RUNTIME = "tests/end_to_end", "tests/runtime_py"
OTHERS = (
    "tests/tools",
    "tests/hostile",
    *(f"{RUNTIME}/{n}" for n in ("generation", "memory", "kernels", "delegates")),
)
# All tests in two parts that take about as long. The second part has the tests of whole
# models, except those of transformers, and a few more folders.
SECOND = [WHOLE, f"--ignore={WHOLE}/hugging_face", *OTHERS]
FIRST = [f"--ignore={WHOLE}/{folder}" for folder in ("state", "control_flow")]
# The two runs do not write files that the other run reads.
TESTS = [PYTHON, "-m", "pytest", "--durations=10", "-p", "no:cacheprovider"]


# Tests start hundreds of processes; each would compile kvc's sources again.
SETTINGS.pop("PYTHONDONTWRITEBYTECODE", None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command.

    Attributes:
        code: exit code, negative for a signal.
        output: all text that the command printed.
        seconds: duration of the command in seconds.
    """

    code: int
    output: str
    seconds: float

    @property
    def summary(self) -> str:
        """Return the last line of the output; pytest's last line counts tests."""
        return self.output.rstrip().rpartition("\n")[2]


class Step:
    """A command that starts when this object is created.

    The output goes to a file: a full pipe that is not yet read would stop the command.
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
        """Wait for the end of the command; must be called only once."""
        with self._output as output:
            code = self._running.wait()
            seconds = time.perf_counter() - self._begun
            output.seek(0)
            return Outcome(code, output.read().decode(errors="replace"), seconds)


FIRST += [
    f"--ignore-glob={WHOLE}/test_*.py",
    *(f"--ignore={other}" for other in OTHERS),
]


def report(name: str, outcome: Outcome) -> bool:
    """Print the outcome of a step, and the step's output if it failed."""
    word = "failed" if outcome.code else "ok"
    print(f"{name:<18}{word:<7}{outcome.seconds:6.1f} s", flush=True)
    if outcome.code:
        print(f"{outcome.output}\nexit code {outcome.code}", flush=True)
    elif "tests" in name:
        print(outcome.summary, flush=True)
    return outcome.code == 0


def run_slow() -> bool:
    """Run the steps that take minutes, side by side; return whether all passed."""
    steps = [
        Step("tests", [*TESTS, *FIRST]),
        Step("end-to-end tests", [*TESTS, *SECOND]),
        Step("types", TYPES),
        Step("wheel", [PYTHON, "tools/dev/check_wheel.py"]),
    ]
    passed = [report(step.name, step.wait()) for step in steps]
    return all(passed)


def main() -> int:
    """Run the steps; return 1 if a step fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="only what takes seconds")
    fast_only = parser.parse_args().fast
    for name, command in (FAST if fast_only else QUICK).items():
        if not report(name, Step(name, command).wait()):
            return 1
    return 0 if fast_only or run_slow() else 1


if __name__ == "__main__":
    sys.exit(main())
