"""Whether torch is installed, which compiling needs, and code that no backend runs.

It is looked for, not imported: that takes two seconds.
"""

import sys
from importlib.util import find_spec
from typing import Final

from kvc.schema.errors import MissingPackage

INSTALL: Final = "pip install 'kvc[compile]'"  # of kvc as it is installed


def check_torch(what: str) -> None:
    """Check that torch is installed.

    Args:
        what: needs it, for the message.

    Raises:
        MissingPackage: it is not.
    """
    if sys.modules.get("torch") is None and find_spec("torch") is None:
        reason = "it is not installed"
        raise MissingPackage(
            what=what, package="torch", reason=reason, install=INSTALL
        )
