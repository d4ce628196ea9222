"""Whether torch is installed, which compiling needs, and code that no backend runs.

It is looked for, not imported: that takes two seconds.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from kvc.schema.errors import MissingPackage

INSTALL: Final = "pip install 'kvc[compile]'"  # of kvc as it is installed
ABSENT: Final = "it is not installed"


def has_torch() -> bool:
    """Tell whether torch is installed."""
    return sys.modules.get("torch") is not None or find_spec("torch") is not None


def missing_torch(what: str, reason: str = ABSENT) -> MissingPackage:
    """Return the error that `what` needs torch, which is not installed."""
    return MissingPackage(what=what, package="torch", reason=reason, install=INSTALL)


def check_torch(what: str, why: Callable[[], str]) -> None:
    """Check that torch is installed, which `what`, of a bundle, needs.

    Args:
        what: a method or a bundle.
        why: says which of its code needs torch; asked where torch is missing.

    Raises:
        MissingPackage: it is not installed.
    """
    if not has_torch():
        raise missing_torch(what, f"{ABSENT}, and {why()}")
