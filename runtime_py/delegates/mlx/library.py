"""Tell whether MLX is here without importing it, and import it."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from kvc.schema.errors import MissingLibrary

VERSION: Final = "0.32.4"


def import_mlx() -> ModuleType:
    """Return MLX.

    Raises:
        MissingLibrary: it is missing, or cannot be loaded.
    """
    check_installed()
    try:
        return import_module("mlx.core")
    except (ImportError, OSError) as error:
        reason = f"it cannot be loaded: {error}"
        raise _missing(reason) from error


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
    elif not _computes():
        reason = "it is installed without a backend of its own"
    if reason:
        raise _missing(reason)


def _computes() -> bool:
    """Tell whether the library is there that another package, `mlx-cpu` or so, has."""
    spec = find_spec("mlx.core")
    if spec is None or spec.origin is None:
        return False
    return any((Path(spec.origin).parent / "lib").glob("libmlx*"))


def _missing(reason: str) -> MissingLibrary:
    install = "pip install 'kvc[mlx]'"
    return MissingLibrary(library=f"mlx {VERSION}", reason=reason, install=install)
