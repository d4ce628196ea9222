"""The Python packages of a vendor's library, each of exactly one version.

In: names and versions of packages. Out: a check of what is installed. This module never
imports the packages: a subprocess, or the backend itself, imports the packages.
"""

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from kvc.runtime.execution.delegate import NeededLibrary
from kvc.schema.errors import MissingLibrary
from kvc.schema.frozen import frozen


@frozen
class LibraryPackage:
    """A vendor's library.

    Attributes:
        library: name of the library, for messages.
        extra: the extra of kvc that installs the packages.
        versions: the needed version of each package, by the package's name.
        linux_only: whether kvc runs the library only on Linux and x86-64.
    """

    library: str
    extra: str
    versions: Mapping[str, str]
    linux_only: bool = False

    @property
    def needed(self) -> NeededLibrary:
        """Return the library's name, and the command that installs the packages."""
        return NeededLibrary(self.library, f"pip install 'kvc[{self.extra}]'")

    def check(self) -> None:
        """Check that the library is installed, without loading it.

        Raises:
            MissingLibrary: the library is missing, has another version, or does not
                support this machine.
        """
        here = sys.platform, platform.machine()
        if self.linux_only and here != ("linux", "x86_64"):
            what = f"kvc runs it on Linux and x86-64, and this is {here[1]}, {here[0]}"
            raise self.missing(what)
        for package, wanted in self.versions.items():
            try:
                found = version(package)
            except PackageNotFoundError as error:
                raise self.missing(f"{package} is not installed") from error
            if found != wanted:
                what = f"{package} is of version {found}, where {wanted} is needed"
                raise self.missing(what)

    def missing(self, reason: str) -> MissingLibrary:
        """Return the error that the library cannot be used for `reason`."""
        return self.needed.missing(reason)
