"""Where the parts of a file lie, and the check that they fill it without overlap.

A file is its header, its blobs in the order of their offsets, and its tail (program or
index), each at the next multiple of its alignment, with zeros between. So there are no
overlaps, no holes, and nothing after the end.
"""

from collections.abc import Sequence
from typing import Final

from kvc.schema.container.header import HEADER_NBYTES, Header, Kind
from kvc.schema.errors import BadProgram
from kvc.schema.frozen import frozen
from kvc.schema.model import Blob
from kvc.schema.verify.limits import MAX_BLOB_ALIGN

TAIL_ALIGN: Final = 64


def default_align(nbytes: int) -> int:
    """Return the alignment of a blob: 64 B; 4 KiB from 4 KiB; 64 KiB from 4 MiB."""
    if nbytes >= 4 << 20:
        return 64 << 10
    return 4 << 10 if nbytes >= 4 << 10 else 64


def align_up(offset: int, align: int) -> int:
    """Return the first multiple of `align` that is not below `offset`."""
    return -(-offset // align) * align


@frozen
class Layout:
    """Where zero padding lies.

    Attributes:
        padding: for each blob of the file, by id: where the part before it ends.
        tail_padding: where the last blob ends.
    """

    padding: dict[int, int]
    tail_padding: int


def check_layout(
    blobs: Sequence[Blob], header: Header, kind: Kind, path: str
) -> Layout:
    """Check that header, blobs of file 0 and tail tile the file; return the padding.

    Raises:
        BadProgram: they overlap, leave a hole, or are misaligned.
    """
    own = [(blob.offset, i) for i, blob in enumerate(blobs) if blob.file == 0]
    end, padding = HEADER_NBYTES, {}
    for offset, i in sorted(own):
        _check_blob(blobs[i], f"blob {i}", end, header.tail_offset, path)
        padding[i] = end
        end = offset + blobs[i].nbytes
    expected = align_up(end, TAIL_ALIGN)
    if header.tail_offset != expected:
        what = f"it is at {header.tail_offset}, after the blobs comes {expected}"
        raise BadProgram(path=path, where=kind.tail, what=what)
    return Layout(padding, end)


def _check_blob(blob: Blob, where: str, end: int, limit: int, path: str) -> None:
    align = blob.align
    if not 0 < align <= MAX_BLOB_ALIGN or align & (align - 1):
        what = f"alignment {align} is no power of two up to {MAX_BLOB_ALIGN}"
    elif blob.offset != align_up(end, align):
        what = (
            f"it is at {blob.offset}, not at the first multiple of {align} after {end}"
        )
    elif blob.nbytes > limit - blob.offset:
        what = f"its {blob.nbytes} bytes at {blob.offset} reach past the blobs' end"
    else:
        return
    raise BadProgram(path=path, where=where, what=what)
