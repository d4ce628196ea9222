"""Where the parts of a bundle lie: alignment, and the check that they tile the file.

A bundle is its header, the blobs of file 0 in the order of their offsets, and the
program, each at the next multiple of its alignment, with zeros between. So there are
no overlaps, no holes, and nothing behind the end.
"""

from dataclasses import dataclass
from typing import Final

from kvc.schema.container.header import HEADER_NBYTES, Header
from kvc.schema.errors import BadProgram
from kvc.schema.model import Blob, Program
from kvc.schema.verify.limits import MAX_BLOB_ALIGN

PROGRAM_ALIGN: Final = 64


def default_align(nbytes: int) -> int:
    """Return the alignment of a blob: 64 B; 4 KiB from 4 KiB; 64 KiB from 4 MiB."""
    if nbytes >= 4 << 20:
        return 64 << 10
    return 4 << 10 if nbytes >= 4 << 10 else 64


def align_up(offset: int, align: int) -> int:
    """Return the first multiple of `align` that is not below `offset`."""
    return -(-offset // align) * align


@dataclass(frozen=True, slots=True)
class Layout:
    """Where zero padding lies.

    Attributes:
        padding: for each blob of file 0, by id: where the part before it ends.
        program_padding: where the last blob ends.
    """

    padding: dict[int, int]
    program_padding: int


def check_layout(program: Program, header: Header, path: str) -> Layout:
    """Check that header, blobs and program tile the file, and return the padding.

    Raises:
        BadProgram: they overlap, leave a hole, or are misaligned.
    """
    own = [(blob.offset, i) for i, blob in enumerate(program.blobs) if blob.file == 0]
    end, padding = HEADER_NBYTES, {}
    for offset, i in sorted(own):
        blob = program.blobs[i]
        _check_blob(blob, i, end, header.program_offset, path)
        padding[i] = end
        end = offset + blob.nbytes
    expected = align_up(end, PROGRAM_ALIGN)
    if header.program_offset != expected:
        what = f"it is at {header.program_offset}, behind the blobs comes {expected}"
        raise BadProgram(path=path, where="program", what=what)
    return Layout(padding, end)


def _check_blob(blob: Blob, i: int, end: int, limit: int, path: str) -> None:
    align = blob.align
    if not 0 < align <= MAX_BLOB_ALIGN or align & (align - 1):
        what = f"alignment {align} is no power of two up to {MAX_BLOB_ALIGN}"
    elif blob.offset != align_up(end, align):
        what = (
            f"it is at {blob.offset}, not at the first multiple of {align} behind {end}"
        )
    elif blob.nbytes > limit - blob.offset:
        what = f"its {blob.nbytes} bytes at {blob.offset} reach into the program"
    else:
        return
    raise BadProgram(path=path, where=f"blob {i}", what=what)
