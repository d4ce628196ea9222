"""Write a folder of files, all of it or nothing."""

import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from kvc.schema.errors import CannotWrite, reason_of


def write_folder(path: Path, archive: bytes) -> None:
    """Write the files of a zip archive to a folder that is not there yet.

    Raises:
        CannotWrite: something is there, or the system refuses.
    """
    if os.path.lexists(path):
        raise CannotWrite(path=str(path), reason="it exists; give another name")
    try:
        own = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            folder = own / path.name
            folder.mkdir()  # with the permissions that this process gives
            with zipfile.ZipFile(io.BytesIO(archive)) as files:
                files.extractall(folder)
            folder.rename(path)
        finally:
            shutil.rmtree(own, ignore_errors=True)
    except OSError as error:
        raise CannotWrite(path=str(path), reason=reason_of(error)) from error
