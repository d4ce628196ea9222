"""Named data: constants that are brought into memory on request, and freed.

    open files --MappedBlobs or OwnBlobs--> byte ranges --HeldBlobs--> FreeableBuffer

`mapped.py` and `own.py` are the two ways to put blobs into memory; `shared.py` has what
programs of this process share, and `mapped_files.py` the maps; `held.py` counts the
handles on a blob; `buffers.py` has the handles through which users read named data and
bundled files; `residency.py` reports memory.
"""

from kvc.runtime.data.buffers import BundledFiles, FreeableBuffer, NamedBuffers, Slots
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
    "Slots",
    "Totals",
    "hold_blobs",
]
