"""What a `.ptd` file holds: data by name, for programs of ExecuTorch that share it.

In: a path. Out: a `Ptd`. The layout is that of `flat_tensor.fbs` of ExecuTorch 1.5
(identifier FT01), behind the extended header `FH01`.
"""

from dataclasses import dataclass

from kvc.schema.errors import BadStructure
from kvc.tools.executorch.contents import Segment
from kvc.tools.executorch.program import SCALARS, read_front, read_segments
from kvc.tools.executorch.tables import Buffer, Table

_FLAT_TENSOR = ("version", "segments", "named_data")
_NAMED = ("key", "segment_index", "tensor_layout")
_LAYOUT = ("scalar_type", "sizes", "dim_order")


@dataclass(frozen=True, slots=True)
class Entry:
    """Data with a name; `type` is "" where the file does not say it."""

    key: str
    type: str
    segment: int


@dataclass(frozen=True, slots=True)
class Ptd:
    """A data file of ExecuTorch."""

    path: str
    nbytes: int
    version: int
    header_nbytes: int
    index_nbytes: int
    segments: tuple[Segment, ...]
    entries: tuple[Entry, ...]


def read_ptd(path: str) -> Ptd:
    """Read a data file's index.

    Raises:
        FileProblem: the system cannot read it.
        BadStructure, Truncated, LimitExceeded: it is damaged, or no such file.
    """
    content, nbytes, extended = read_front(path, b"FH01")
    if extended is None:
        raise BadStructure(path=path, offset=8, what="the extended header is missing")
    header_nbytes, index_nbytes, begin = extended
    buffer = Buffer(content[:index_nbytes], path)
    root = buffer.root(_FLAT_TENSOR)
    segments = read_segments(root, buffer, begin, nbytes)
    entries = tuple(_read(one, buffer) for one in root.tables("named_data", _NAMED))
    for entry in entries:
        if entry.segment >= len(segments):
            buffer.fail(0, f"segment {entry.segment} is not there")
    version = root.integer("version", "I")
    return Ptd(path, nbytes, version, header_nbytes, index_nbytes, segments, entries)


def _read(one: Table, buffer: Buffer) -> Entry:
    layout = one.table("tensor_layout", _LAYOUT)
    kind = ""
    if layout is not None:
        scalar = layout.integer("scalar_type", "b")
        if scalar not in SCALARS:
            buffer.fail(0, f"data of the scalar type {scalar}, which does not exist")
        kind = f"{SCALARS[scalar][0]}{list(layout.integers('sizes', 'i4'))}"
    return Entry(one.name("key"), kind, one.integer("segment_index", "I"))
