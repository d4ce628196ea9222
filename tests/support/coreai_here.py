"""Skip what needs Apple's Core AI where it is not installed."""

import pytest

from kvc.runtime.delegates.coreai.library import check_installed
from kvc.schema.errors import MissingLibrary


def check() -> None:
    """Skip the test, unless the library is here."""
    try:
        check_installed()
    except MissingLibrary as error:
        pytest.skip(str(error))
