"""Check whether torch is installed, which the compiler and some programs need.

The check does not import torch, since the import takes two seconds.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from kvc.schema.errors import MissingPackage

INSTALL: Final = "pip install 'kvc[compile]'"  # the installed kvc, with torch
ABSENT: Final = "it is not installed"


def has_torch() -> bool:
    """Tell whether torch is installed."""
    return sys.modules.get("torch") is not None or find_spec("torch") is not None


def missing_torch(what: str, reason: str = ABSENT) -> MissingPackage:
    """Return the error for `what`, which needs torch, while torch is not installed."""
    return MissingPackage(what=what, package="torch", reason=reason, install=INSTALL)


def check_torch(what: str, why: Callable[[], str]) -> None:
    """Check that torch is installed, for a method or a bundle that needs torch.

    Args:
        what: the method or bundle, as the message names it.
        why: returns which code needs torch; called only if torch is missing.

    Raises:
        MissingPackage: torch is not installed.
    """
    if not has_torch():
        raise missing_torch(what, f"{ABSENT}, and {why()}")
