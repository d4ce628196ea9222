"""What every test finds: a process as a person at a terminal has, and the same cases.

Nothing here depends on who starts the run: signals, variables and random cases are set
to what the tests were written for.
"""

import gc
import os
import signal

import pytest
from hypothesis import settings

# A change of these changes what is printed, warned about or compiled.
SWITCHES = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "PYTHONWARNINGS",
    "PYTHONOPTIMIZE",
    "TORCH_LOGS",
    "TORCH_COMPILE_DEBUG",
    "TORCHDYNAMO_VERBOSE",
    "TORCH_SHOW_CPP_STACKTRACES",
)

# No test may fail by the draw of the day: only an exhaustive run draws new cases.
settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("new", deadline=None, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    """Undo what the caller has set."""
    for name in SWITCHES:
        os.environ.pop(name, None)
    # A shell that starts a job in the background makes it ignore SIGINT, and all that
    # it starts: then no test could interrupt anything.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exhaustive = config.getoption("markexpr") == "exhaustive"
    settings.load_profile("new" if exhaustive else "same")


def pytest_collection_finish() -> None:
    """Take what is imported by now out of the collector's sight.

    torch, sympy and the tests are half a million objects, and each full collection
    walked them all: 40% of the time of the tests (measured).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
