"""Check everything that a commit must pass: `python tools/dev/check.py`.

With `--fast`, only what takes seconds: format, lint, schema, types, architecture. The
same command runs by hand and in CI. Stops at the first of these that fails, with its
output; then tests and wheel run side by side. Tests that fail are run once more, alone,
when all else is done: `steps.py` says why.
"""

import argparse
import sys

from kvc.tools.dev.steps import Outcome, Step, Tests, second_run

PYTHON = sys.executable

FAST = {
    "format": [PYTHON, "-m", "ruff", "format", "--check", "."],
    "lint": [PYTHON, "-m", "ruff", "check", "."],
    "schema": [PYTHON, "tools/dev/check_schema.py"],
    "links": [PYTHON, "tools/dev/link_types.py"],
    "types": [PYTHON, "-m", "mypy", "-p", "kvc"],
    "architecture": [PYTHON, "-m", "pytest", "tests/test_architecture.py"],
}
WHOLE = "tests/end_to_end"  # about half of the time
DURATIONS = "--durations=10"


def start_slow() -> list[Step]:
    """Start what takes minutes, side by side."""
    return [
        Tests("tests", [DURATIONS, f"--ignore={WHOLE}"]),
        Tests("end-to-end tests", [DURATIONS, WHOLE]),
        Step("wheel", [PYTHON, "tools/dev/check_wheel.py"]),
    ]


def report(name: str, outcome: Outcome) -> bool:
    """Say how a step went, with its output where it failed."""
    word = "failed" if outcome.code else "ok"
    print(f"{name:<18}{word:<7}{outcome.seconds:6.1f} s", flush=True)
    if outcome.code:
        print(f"{outcome.output}\nexit code {outcome.code}", flush=True)
    elif "tests" in name:
        print(outcome.summary, flush=True)
    return outcome.code == 0


def run_again(name: str, first: Outcome) -> bool:
    """Give failed tests their second run; return whether all passed then."""
    second = second_run(name, first)
    if second is None:
        return False
    passed = report(f"{name}, again", second)
    if passed:
        print("PASSED ONLY IN A SECOND RUN, see the tracebacks above; mend these:")
        print("".join(f"    {test}\n" for test in first.failed), end="", flush=True)
    return passed


def run_slow() -> bool:
    """Run what takes minutes; return whether all passed."""
    outcomes = [(step.name, step.wait()) for step in start_slow()]
    failed = [(name, one) for name, one in outcomes if not report(name, one)]
    again = [run_again(name, one) for name, one in failed]
    return all(again)


def main() -> int:
    """Run the steps; return 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="only what takes seconds")
    fast_only = parser.parse_args().fast
    for name, command in FAST.items():
        if not report(name, Step(name, command).wait()):
            return 1
    return 0 if fast_only or run_slow() else 1


if __name__ == "__main__":
    sys.exit(main())
