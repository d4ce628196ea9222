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


@pytest.fixture(autouse=True)
def _steps_that_files_may_have() -> Iterator[None]:
    """Check the steps of all tests here as those of a file would be."""
    with all_steps_checked():
        yield
