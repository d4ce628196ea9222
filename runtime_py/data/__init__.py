"""Named data: constants that are brought into memory on request, and freed.

    open files --MappedBlobs or OwnBlobs--> places --HeldBlobs--> FreeableBuffer

`mapped.py` and `own.py` put blobs into memory, each in its way; `held.py` counts the
users of a blob; `buffers.py` is what users hold, of named data and of bundled files;
`residency.py` reports memory.
"""

from kvc.runtime.data.buffers import BundledFiles, FreeableBuffer, NamedBuffers
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
