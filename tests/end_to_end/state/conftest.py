"""Programs that several of these modules run: each is compiled once, when asked for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from greedy_backends import compiling_with
from ragged_models import opened_ragged

from kvc.runtime import Program


@pytest.fixture(scope="session")
def ragged(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[Callable[[str], Program]]:
    """Return what gives the program of a kind of `ragged_models.RAGGED`."""
    with ExitStack() as stack:

        @cache
        def program(kind: str) -> Program:
            folder = tmp_path_factory.mktemp("ragged")
            return stack.enter_context(opened_ragged(kind, folder))

        yield program


# They look at the steps, verdicts or bytes of a method that nobody takes parts of.
_OF_NO_BACKEND = (
    "test_failures.py",
    "test_rivals_defects.py",
    "test_nothing_is_copied_to_write_them",
    "test_caches_are_written_in_place",
    "test_a_spelling_does_in_each_call_what_eager_does",
    "test_a_write_outside_is_refused_and_changes_nothing",
)
_HERE = Path(__file__).parent
_DAILY = 8  # one of so many tests runs with a backend every day, the rest on request


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose which tests run with a backend: the same ones each day."""
    kept = []
    for item in items:
        taken = "[greedy" in item.nodeid and _HERE in item.path.parents
        if taken and any(name in item.nodeid for name in _OF_NO_BACKEND):
            continue
        always = "test_whoever_runs" in item.nodeid or "test_cursors" in item.nodeid
        if taken and not always and crc32(item.nodeid.encode()) % _DAILY:
            item.add_marker(pytest.mark.exhaustive)
        kept.append(item)
    items[:] = kept


@pytest.fixture(scope="session", params=["", "greedy"])
def backend(request: pytest.FixtureRequest) -> str:
    """Give every test each way to run its methods; see `greedy_backends`.

    Of the session, so that a module's own fixtures are made once for each of them.
    """
    name: str = request.param
    return name


@pytest.fixture(scope="module", autouse=True)
def _compiling(backend: str) -> Iterator[None]:
    """Let the backend be that of these modules, and of no other test."""
    with compiling_with(backend):
        yield
