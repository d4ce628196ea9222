"""Find Core AI: a package of exactly one version, which nothing imports.

Here it is only looked for; the process of `worker.py` imports it.
"""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from kvc.schema.errors import MissingLibrary

PACKAGE: Final = "coreai-core"
VERSION: Final = "1.0.0b3"
INSTALL: Final = "pip install 'kvc[coreai]'"
LIBRARY: Final = "Core AI of Apple"
# The least version of the systems that an asset is written for.
TARGET: Final = "v27"


def check_installed() -> None:
    """Check that the library is here, without loading it.

    Raises:
        MissingLibrary: it is not, it has another version, or it is for a machine of
            another kind.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine != "x86_64":
        what = f"kvc runs it on Linux and x86-64, and this is {sys.platform}, {machine}"
        raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL)
    try:
        found = version(PACKAGE)
    except PackageNotFoundError as error:
        what = f"{PACKAGE} is not installed"
        raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL) from error
    if found != VERSION:
        what = f"{PACKAGE} is of version {found}, where {VERSION} is needed"
        raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL)
