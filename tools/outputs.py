"""Check where a command writes, before it does any work."""

import os
from pathlib import Path

from kvc.schema.errors import CannotWrite, reason_of


def check_output(name: str, source: Path | None = None) -> Path:
    """Return the path of a file that can be written.

    Args:
        name: as the user gave it.
        source: a folder that is read. Of its files only bundles may be replaced.

    Raises:
        CannotWrite: it is a folder, a data file or a file of the source, or its
            folder is missing or refuses.
    """
    path = Path(name)
    try:
        reason = _reason(name, path) or _why_kept(path, source)
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
    """Say that a file belongs to what is read, "" when it does not.

    Raises:
        OSError: the system does not let anyone look.
    """
    from kvc.schema.container.kinds import BUNDLE_MAGIC

    if source is None or not path.is_file():
        return ""
    if path.resolve().parent != source.resolve():
        return ""
    with path.open("rb") as file:
        is_bundle = file.read(len(BUNDLE_MAGIC)) == BUNDLE_MAGIC
    return "" if is_bundle else "it is a file of the model; give another name"
