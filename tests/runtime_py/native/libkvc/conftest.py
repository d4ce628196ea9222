"""libkvc is a part of the kernels' library, unless that was built without it."""

import pytest
from libkvc import library


@pytest.fixture(autouse=True, scope="session")
def has_libkvc() -> None:
    if not hasattr(library(), "kvc_open"):
        pytest.skip("the kernels were built without the headers of FlatBuffers")
