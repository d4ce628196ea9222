"""Check everything that a commit must pass: `python tools/dev/check.py`.

With `--fast`, only what takes seconds: format, lint, schema, types, architecture. The
same command runs by hand and in CI. Stops at the first step that fails, with its
output.
"""

import argparse
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
SLOW = {
    "tests": [PYTHON, "-m", "pytest", "--durations=10"],
    "wheel": [PYTHON, "tools/dev/check_wheel.py"],
}


def main() -> int:
    """Run the steps; return 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="only what takes seconds")
    steps = FAST if parser.parse_args().fast else FAST | SLOW
    for name, command in steps.items():
        start = time.perf_counter()
        print(f"{name:<13}", end="", flush=True)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        print(f"{'failed' if done.returncode else 'ok':<7}{seconds:6.1f} s")
        if done.returncode:
            print(done.stdout + done.stderr)
            return 1
        if name == "tests":
            print(done.stdout.splitlines()[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
