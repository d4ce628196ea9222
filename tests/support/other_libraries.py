"""Run backends whose libraries are large and closed: with a library, or with numpy."""

from collections.abc import Callable, Mapping

import library_here
import pytest
from coreai_device import use_numpy_core_ai
from qnn_device import use_numpy_device

_BY_NUMPY: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "coreai": use_numpy_core_ai,
    "qnn": use_numpy_device,
}


def use(backend: str, where: str, patch: pytest.MonkeyPatch) -> str:
    """Let a backend run on "numpy" or on its "library".

    Skip the running test if the library is wanted but not installed. Return `where`.
    """
    if where == "numpy":
        _BY_NUMPY[backend](patch)
    else:
        library_here.need(backend)
    return where
