"""Named data: constants that are taken into memory when asked for, and given back.

    open files --MappedBlobs or OwnBlobs--> places --HeldBlobs--> FreeableBuffer

`mapped.py` and `own.py` put blobs into memory, one for each way; `held.py` counts who
holds them; `buffers.py` is what users hold, `files.py` the files that go along;
`residency.py` tells what memory it takes.
"""

from kvc.runtime.data.buffers import FreeableBuffer, NamedBuffers
from kvc.runtime.data.files import BundledFiles
from kvc.runtime.data.held import HeldBlobs
from kvc.runtime.data.modes import Mode, hold_blobs
from kvc.runtime.data.residency import BlobResidency, Residency, Totals

__all__ = [
    "BlobResidency",
    "BundledFiles",
    "FreeableBuffer",
    "HeldBlobs",
    "Mode",
    "NamedBuffers",
    "Residency",
    "Totals",
    "hold_blobs",
]
