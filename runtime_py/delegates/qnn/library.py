"""Find Qualcomm's library: two packages, each of exactly the version that kvc needs.

Only the subprocess of `worker.py` imports the packages; this module does not.
"""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from kvc.schema.errors import MissingLibrary

VERSIONS: Final = {"onnxruntime-qnn": "2.7.0", "onnxruntime": "1.32.0"}
INSTALL: Final = "pip install 'kvc[qnn]'"
LIBRARY: Final = "QNN of Qualcomm"
# Tested architectures, the oldest first, each with a chip that has it.
ARCHITECTURES: Final = {
    68: "Snapdragon 888",
    69: "Snapdragon 8 Gen 1",
    73: "Snapdragon 8 Gen 2",
    75: "Snapdragon 8 Gen 3",
    79: "Snapdragon 8 Elite",
    81: "Snapdragon 8 Elite Gen 5",
}
USUAL: Final = 75


def check_installed() -> None:
    """Check that the library is installed, without loading it.

    Raises:
        MissingLibrary: the library is missing, has another version, or does not support
            this machine.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine != "x86_64":
        what = f"kvc runs its emulator, on Linux and x86-64, and this is {machine}"
        raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL)
    for package, wanted in VERSIONS.items():
        try:
            found = version(package)
        except PackageNotFoundError as error:
            what = f"{package} is not installed"
            raise MissingLibrary(
                library=LIBRARY, reason=what, install=INSTALL
            ) from error
        if found != wanted:
            what = f"{package} is of version {found}, where {wanted} is needed"
            raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL)


def target_of(architecture: int) -> str:
    """Return the name of the target for an architecture, such as `v75` for 75."""
    return f"v{architecture}"
