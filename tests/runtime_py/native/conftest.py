"""What the tests of the native kernels share."""

from collections.abc import Iterator

import pytest
from checked_steps import all_steps_checked

from kvc.runtime.native.library import find_library


@pytest.fixture(params=find_library().processors)
def each_processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with each instruction set that this processor has, the least too."""
    library = find_library()
    kept = library.processor
    library.use(request.param)
    yield
    library.use(kept)


@pytest.fixture
def unchecked_steps() -> None:
    """Let a test have steps that no file may have."""


@pytest.fixture(autouse=True)
def _steps_that_files_may_have(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the steps of all tests here as those of a file would be."""
    if "unchecked_steps" in request.fixturenames:
        yield
        return
    with all_steps_checked():
        yield
