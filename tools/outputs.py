"""Check where a command writes, before it does any work."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvc.schema.errors import CannotWrite, reason_of

_OTHER: Final = "another file is there; give another name, or remove it"


def check_output(name: str) -> Path:
    """Return the path of a file that can be written.

    Args:
        name: as the user gave it.

    Raises:
        CannotWrite: it is a folder or a data file, or its folder is missing or refuses.
    """
    return _checked(name, lambda path: "")


def check_plain_output(name: str) -> Path:
    """Return the path of a file of text that can be written, in no bundle's place.

    Args:
        name: as the user gave it.

    Raises:
        CannotWrite: as `check_output`; or a bundle is there.
    """
    reason = "a bundle is there; give another name"
    return _checked(name, lambda path: reason if _is_bundle(path) else "")


def check_own_output(name: str, start: bytes) -> Path:
    """Return the path of a file that can be written, where nothing else is lost.

    Args:
        name: as the user gave it.
        start: what all files of this kind begin with. Such a file is replaced, and an
            empty one.

    Raises:
        CannotWrite: as `check_output`; or another file is there.
    """
    return _checked(name, lambda path: "" if _is_own(path, start) else _OTHER)


def check_new_folder(name: str) -> Path:
    """Return the path of a folder that can be made.

    Args:
        name: as the user gave it.

    Raises:
        CannotWrite: something is there, or the folder that it is to lie in is missing
            or refuses.
    """
    if name and os.path.lexists(name.rstrip(os.sep)):
        raise CannotWrite(path=name, reason="it exists; give another name")
    return check_output(name.rstrip(os.sep))


def check_bundle_output(name: str, source: Path | None = None) -> Path:
    """Return the path of a bundle that can be written, where nothing else is lost.

    A file is replaced that is a bundle, is empty or is named like one.

    Args:
        name: as the user gave it.
        source: a folder that is read. Of its files only bundles are replaced.

    Raises:
        CannotWrite: as `check_output`; or another file is there.
    """
    return _checked(name, lambda path: _why_kept(path, source))


def _checked(name: str, why_kept: Callable[[Path], str]) -> Path:
    path = Path(name)
    try:
        reason = _reason(name, path) or why_kept(path)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
    if reason:
        raise CannotWrite(path=name or "an output without a name", reason=reason)
    return path


def _reason(name: str, path: Path) -> str:
    """Say why a file cannot be written, "" when nothing is known to speak against.

    Raises:
        OSError, ValueError: the system does not let anyone look.
    """
    from kvc.schema.container import why_not_replaced

    folder = path.parent
    if not name:
        return "give the name of a file"
    if name.endswith(os.sep) or path.is_dir():
        return "it is a folder; give the name of a file"
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} may not be written to"
    return why_not_replaced(path) if path.exists() else ""


def _why_kept(path: Path, source: Path | None) -> str:
    """Say why a bundle must not replace what is there, "" when it may.

    Raises:
        OSError: the system does not let anyone look.
    """
    if not path.is_file() or _is_bundle(path):
        return ""
    if source is not None and path.resolve().parent == source.resolve():
        return "it is a file of the model; give another name"
    if path.stat().st_size and path.suffix != ".kvc":
        return _OTHER
    return ""


def _is_own(path: Path, start: bytes) -> bool:
    """Tell whether nothing is lost where a file is replaced by one of this kind.

    Raises:
        OSError: the system does not let anyone look.
    """
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return file.read(len(start)) in (start, b"")


def _is_bundle(path: Path) -> bool:
    """Tell whether a file is a bundle.

    Raises:
        OSError: the system does not let anyone look.
    """
    from kvc.schema.container.kinds import BUNDLE_MAGIC

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(BUNDLE_MAGIC)) == BUNDLE_MAGIC
