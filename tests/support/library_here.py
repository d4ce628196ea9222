"""Tell whether a backend's library is installed; skip the tests that need it if not."""

from collections.abc import Callable, Mapping

import pytest

from kvc.runtime.delegates.coreai.context import CORE_AI
from kvc.runtime.delegates.coreml.package import COREMLTOOLS
from kvc.runtime.delegates.mlx.backend import check_installed as check_mlx
from kvc.runtime.delegates.qnn.library import QNN
from kvc.schema.errors import MissingLibrary

_CHECKS: Mapping[str, Callable[[], object]] = {
    "coreai": CORE_AI.check,
    "coreml": COREMLTOOLS.check,
    "mlx": check_mlx,
    "qnn": QNN.check,
}


def is_here(backend: str) -> bool:
    try:
        _CHECKS[backend]()
    except MissingLibrary:
        return False
    return True


def need(backend: str) -> None:
    """Skip the running test if the backend's library is not installed."""
    try:
        _CHECKS[backend]()
    except MissingLibrary as error:
        pytest.skip(str(error))
