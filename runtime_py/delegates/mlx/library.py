"""Whether MLX is here, without importing it."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from kvc.schema.errors import MissingLibrary

VERSION: Final = "0.32.4"


def check_installed() -> None:
    """Check that MLX of the right version is installed, with something that computes.

    Raises:
        MissingLibrary: it is not.
    """
    try:
        found = version("mlx")
    except PackageNotFoundError:
        found = ""
    reason = ""
    if found != VERSION:
        reason = f"{found} is installed" if found else "it is not installed"
    elif find_spec("mlx.core") is None:
        reason = "it is installed without a backend of its own"
    if reason:
        install = "pip install 'kvc[mlx]'"
        raise MissingLibrary(library=f"mlx {VERSION}", reason=reason, install=install)
