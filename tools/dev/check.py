"""Check everything that a commit must pass: `python tools/dev/check.py`.

With `--fast`, only what takes seconds: format, lint, schema, types, architecture. The
same command runs by hand and in CI. Stops at the first of these that fails, with its
output; then tests and wheel run side by side.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable

FAST = {
    "format": [PYTHON, "-m", "ruff", "format", "--check", "."],
    "lint": [PYTHON, "-m", "ruff", "check", "."],
    "schema": [PYTHON, "tools/dev/check_schema.py"],
    "links": [PYTHON, "tools/dev/link_types.py"],
    "types": [PYTHON, "-m", "mypy", "-p", "kvc"],
    "architecture": [PYTHON, "-m", "pytest", "tests/test_architecture.py"],
}
PYTEST = [PYTHON, "-m", "pytest", "--durations=10"]
WHOLE = "tests/end_to_end"  # about half of the time
SLOW = {
    "tests": [*PYTEST, f"--ignore={WHOLE}"],
    "end-to-end tests": [*PYTEST, WHOLE],
    "wheel": [PYTHON, "tools/dev/check_wheel.py"],
}
# The slow steps run side by side; two thread pools on two cores would wait for each
# other at every small operation.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def start(command: list[str]) -> "subprocess.Popen[str]":
    """Start a step."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env=ONE_THREAD, stdout=pipe, stderr=pipe, text=True
    )


def finish(name: str, running: "subprocess.Popen[str]", begun: float) -> bool:
    """Wait for a step, and say how it went."""
    output, errors = running.communicate()
    seconds = time.perf_counter() - begun
    print(f"{name:<18}{'failed' if running.returncode else 'ok':<7}{seconds:6.1f} s")
    if running.returncode:
        print(output + errors)
    elif "tests" in name:
        print(output.splitlines()[-1])
    return running.returncode == 0


def main() -> int:
    """Run the steps; return 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="only what takes seconds")
    fast_only = parser.parse_args().fast
    for name, command in FAST.items():
        begun = time.perf_counter()
        if not finish(name, start(command), begun):
            return 1
    if fast_only:
        return 0
    begun = time.perf_counter()
    running = [(name, start(command)) for name, command in SLOW.items()]
    passed = [finish(name, one, begun) for name, one in running]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
