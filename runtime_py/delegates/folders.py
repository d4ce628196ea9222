"""A folder of files as bytes: a target's own "file" that is a folder there.

The bytes are a ZIP archive without compression, dates or owners: equal for equal files.
"""

import io
import zipfile
from collections.abc import Mapping
from typing import Final

_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that a ZIP archive has


def pack_folder(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of files, by their paths in the folder."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return made.getvalue()
