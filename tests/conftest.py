"""What every test finds: a process as a person at a terminal has, and the same cases.

Nothing here depends on who starts the run: signals, variables and random cases are set
to what the tests were written for.
"""

import gc
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
from daily import leave_to_the_exhaustive_run
from hypothesis import HealthCheck, settings

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

# Read when torch is imported, which a conftest of a folder may do before anything is
# configured. Bits are compared, and its sums depend on how many threads it has. Those
# of tiny products would spend most of their time waiting for work, and by default they
# take a processor to wait.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

# No test may fail by the draw of the day: only an exhaustive run draws new cases.
# What a health check finds slow is a busy machine.
CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile(
    "same", derandomize=True, database=None, max_examples=50, **CALM
)
settings.register_profile("new", print_blob=True, **CALM)


# Tests of how models are traced, and that equal ones give equal bytes.
_TRACING = (
    "tests/compiler/decompose/",
    "tests/compiler/trace/",
    "tests/compiler/ingest/",
    "tests/compiler/test_pipeline.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Undo what the caller has set."""
    for name in SWITCHES:
        os.environ.pop(name, None)
    # A shell that starts a job in the background makes it ignore SIGINT, and all that
    # it starts: then no test could interrupt anything.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # No test outlives a loss of power; those of what is synchronised replace it.
    os.fsync = lambda file: None
    exhaustive = config.getoption("markexpr") == "exhaustive"
    settings.load_profile("new" if exhaustive else "same")


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        # `torch.manual_seed` seeds other devices, too: as there are none, it notes the
        # stack for each, which takes longer than many a test.
        sys.modules["torch"].default_generator.manual_seed(0)


def pytest_collectstart() -> None:
    """Give a module the same numbers whichever was imported before it."""
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test and its fixtures the same numbers whichever ran before them.

    A test that measures this process begins without garbage of others, which may go at
    any moment.
    """
    _seed()
    if item.get_closest_marker("linux"):
        if sys.platform != "linux":
            pytest.skip("there is no /proc")
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _tracing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Trace equal models once, but where tests look at how it is done."""
    here = request.path.relative_to(request.config.rootpath).as_posix()
    if here.startswith(_TRACING) or "kvc.compiler.pipeline" not in sys.modules:
        yield
        return
    from captured_once import captured_once

    with captured_once():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the exhaustive run what is no part of a daily sample; order the rest."""
    for item in items:
        leave_to_the_exhaustive_run(item)
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


def _collect() -> None:
    """Take what lives by now out of the collector's sight.

    torch, sympy and the tests are half a million objects, and each full collection
    walked them all: a third of the time of the tests (measured).
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Save time: forget what is imported, look for garbage less often."""
    if "torch" in sys.modules:
        from quick_export import quicken_export

        quicken_export()
    _collect()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None]:
    """Leave no garbage to the next file, whose tests may count what is freed."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _collect()


@pytest.fixture(scope="session")
def joined_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model in which the places of a picture see each other."""
    import joined_pictures  # with torch, which few tests need

    return joined_pictures.write_folder(tmp_path_factory.mktemp("joined"))


@pytest.fixture(scope="session")
def joined_bundle(
    joined_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a bundle of that model; tests in several folders need it."""
    import joined_pictures

    path = tmp_path_factory.mktemp("joined") / "model.kvc"
    return joined_pictures.write_bundle(joined_folder, path)
