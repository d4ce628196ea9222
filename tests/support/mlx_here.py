"""Whether MLX is here: tests that need it are skipped without it."""

import pytest

from kvc.runtime.delegates.mlx.library import check_installed
from kvc.schema.errors import MissingLibrary


def is_here() -> bool:
    """Tell whether it is."""
    try:
        check_installed()
    except MissingLibrary:
        return False
    return True


def check() -> None:
    """Skip a test where MLX is missing."""
    try:
        check_installed()
    except MissingLibrary as error:
        pytest.skip(str(error))
