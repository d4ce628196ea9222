"""Programs that several of these modules run: each is compiled once, when asked for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

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


@pytest.fixture(scope="session", params=["", "greedy", "parts"], autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test with each way to run its methods; see `greedy_backends`."""
    with compiling_with(request.param):
        yield request.param
