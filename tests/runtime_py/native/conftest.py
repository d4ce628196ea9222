"""What the tests of the native kernels share."""

from collections.abc import Iterator

import pytest

from kvc.runtime.native.library import find_library


@pytest.fixture(params=find_library().processors)
def each_processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with each instruction set that this processor has, the least too."""
    library = find_library()
    kept = library.processor
    library.use(request.param)
    yield
    library.use(kept)
