"""Read the JSON files of a model's folder."""

from pathlib import Path

from kvc.compiler.checkpoints.header import Problems, parse_object
from kvc.schema.errors import BadModelFolder, reason_of


def read_json(folder: Path, name: str) -> dict[str, object]:
    """Return the content of a JSON file in a folder.

    Raises:
        BadModelFolder: the file cannot be read, or is not a JSON object.
    """
    try:
        return parse_object((folder / name).read_bytes())
    except OSError as error:
        reason = f"cannot read {name}: {reason_of(error)}"
    except Problems as error:
        reason = f"{name}: {'; '.join(error.reasons)}"
    raise BadModelFolder(path=str(folder), reason=reason)
