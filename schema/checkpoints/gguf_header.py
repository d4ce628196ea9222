"""Read the header of a GGUF file, and check every number in it.

The format is that of ggml's docs/gguf.md, versions 2 and 3, little-endian: a magic
number, counts, metadata, descriptions of tensors, and the tensors' bytes. The `gguf`
package maps the file and takes seconds for a vocabulary, and its errors name no tensor;
types and sizes of blocks are its own.
"""

import os
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Final

from kvc.schema.checkpoints.problems import Problems, shown
from kvc.schema.errors import MissingPackage
from kvc.schema.frozen import frozen

MAGIC: Final = b"GGUF"
SUFFIX: Final = ".gguf"
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = "general.alignment"
_CHUNK: Final = 1 << 20
_MOST: Final = 1 << 24  # tensors, entries of metadata, elements of an array
_MOST_NBYTES: Final = 1 << 27  # of a text
_RANKS: Final = 4
STRING: Final = 8  # the number of the type of texts
_ARRAY: Final = 9
# Number of a type of metadata -> struct's letter for it.
_SCALARS: Final = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}

Metadata = str | int | float | bool | list["Metadata"]


@frozen
class GgufEntry:
    """A tensor as a header describes it.

    Attributes:
        kind: the type of its elements, by the format's name.
        shape: its sizes in torch's order: the last axis lies together.
        begin: the offset in the file of its first byte.
        row_nbytes: the number of bytes of a row along the last axis.
    """

    kind: str
    shape: tuple[int, ...]
    begin: int
    row_nbytes: int


@frozen
class GgufHeader:
    """The header of a GGUF file.

    Attributes:
        metadata: the entries of metadata, by key.
        types: key -> the numbers of the types of an entry; of a list, its own and that
            of its elements.
        tensors: the tensors by name.
    """

    metadata: Mapping[str, Metadata]
    types: Mapping[str, tuple[int, ...]]
    tensors: Mapping[str, GgufEntry]


class _Cursor:
    """Reads numbers and texts of a file from the first byte on."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size = fd, size
        self._held, self._first, self.at = b"", 0, 0

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes.

        Raises:
            Problems: the file ends before.
        """
        begin = self.at - self._first
        if begin + nbytes > len(self._held):
            wanted = max(nbytes, _CHUNK)
            self._held = os.pread(self._fd, wanted, self.at)
            self._first, begin = self.at, 0
            if len(self._held) < nbytes:
                ends = f"{self._size} bytes, and its header is longer"
                raise Problems(f"it is cut short: {ends}")
        self.at += nbytes
        return self._held[begin : begin + nbytes]

    def number(self, letter: str) -> int:
        """Return the next number, of the type that struct has as `letter`.

        Raises:
            Problems: the file ends before.
        """
        size = struct.calcsize("<" + letter)
        found: int = struct.unpack("<" + letter, self.take(size))[0]
        return found

    def count(self, what: str, most: int = _MOST) -> int:
        """Return the next number, a uint64.

        Raises:
            Problems: it is above `most`, or the file ends before.
        """
        found = self.number("Q")
        if found > most:
            raise Problems(f"it has {found} {what}, which cannot be")
        return found

    def text(self) -> str:
        """Return the next text; bytes that are not UTF-8 are replaced.

        Raises:
            Problems: the text is too long, or the file ends before.
        """
        nbytes = self.count("bytes of a text", _MOST_NBYTES)
        return self.take(nbytes).decode("utf-8", "replace")


def read_gguf_header(fd: int, size: int) -> GgufHeader:
    """Return the header of a file of `size` bytes.

    Raises:
        Problems: it is no GGUF file, is cut short, or some of its tensors are wrong:
            their types, their sizes or their places; the error lists all such tensors.
        MissingPackage: the gguf package, which knows the types, is not installed.
    """
    cursor = _Cursor(fd, size)
    if cursor.take(4) != MAGIC:
        raise Problems("it does not begin with GGUF")
    version = cursor.number("I")
    if version not in _VERSIONS:
        other = "another byte order" if version & 0xFFFF == 0 else f"version {version}"
        raise Problems(f"it has {other}; kvc reads versions 2 and 3, little-endian")
    tensors, entries = cursor.count("tensors"), cursor.count("entries of metadata")
    metadata, types = dict[str, Metadata](), dict[str, tuple[int, ...]]()
    for _ in range(entries):
        key = cursor.text()
        if key in metadata:
            raise Problems(f"its metadata has {shown(key)} twice")
        kind = cursor.number("I")
        metadata[key], types[key] = _value(cursor, kind, key)
    described = [_description(cursor) for _ in range(tensors)]
    alignment = metadata.get(_ALIGNMENT, 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & alignment - 1:
        raise Problems(f"its {_ALIGNMENT} is {alignment!r}, no power of two")
    start = -(-cursor.at // alignment) * alignment
    placed = _entries(described, start)
    if wrong := _cut(placed, size) or _misplaced(placed, alignment):
        raise Problems(*wrong)
    return GgufHeader(metadata, types, placed)


def _value(cursor: _Cursor, kind: int, key: str) -> tuple[Metadata, tuple[int, ...]]:
    if kind == _ARRAY:
        inner = cursor.number("I")
        if inner == _ARRAY:
            raise Problems(f"its metadata {shown(key)} is a list of lists")
        count = cursor.count(f"elements of {shown(key)}")
        if inner in _SCALARS:
            form = f"<{count}{_SCALARS[inner]}"
            values = list(struct.unpack(form, cursor.take(struct.calcsize(form))))
            return values, (_ARRAY, inner)
        return [_one(cursor, inner, key) for _ in range(count)], (_ARRAY, inner)
    return _one(cursor, kind, key), (kind,)


def _one(cursor: _Cursor, kind: int, key: str) -> Metadata:
    if kind == STRING:
        return cursor.text()
    if kind not in _SCALARS:
        raise Problems(f"its metadata {shown(key)} has the unknown type {kind}")
    return cursor.number(_SCALARS[kind])


_Description = tuple[str, tuple[int, ...], int, int]  # name, sizes, type, offset


def _description(cursor: _Cursor) -> _Description:
    name = cursor.text()
    rank = cursor.number("I")
    if rank > _RANKS:
        raise Problems(f"tensor {shown(name)}: {rank} axes, more than {_RANKS}")
    dims = tuple(cursor.number("Q") for _ in range(rank))
    return name, dims[::-1], cursor.number("I"), cursor.number("Q")


def _entries(described: list[_Description], start: int) -> dict[str, GgufEntry]:
    """Return the tensors by name.

    Raises:
        Problems: tensors are of an unknown type, have rows that are no whole blocks, or
            are described twice; the error lists all of them.
    """
    entries, wrong = dict[str, GgufEntry](), list[str]()
    sizes = _block_sizes()
    for name, shape, number, offset in described:
        try:
            if name in entries:
                raise ValueError("it is described twice")
            entries[name] = _entry(shape, number, start + offset, sizes)
        except ValueError as error:
            wrong.append(f"tensor {shown(name)}: {error}")
    if wrong:
        raise Problems(*wrong)
    return entries


def _end(entry: GgufEntry) -> int:
    return entry.begin + prod(entry.shape[:-1]) * entry.row_nbytes


def _cut(entries: Mapping[str, GgufEntry], size: int) -> list[str]:
    """Return what is wrong if tensors end after the file's end."""
    ends = {name: _end(entry) for name, entry in entries.items()}
    cut = [name for name, end in ends.items() if end > size]
    if not cut:
        return []
    last = max(cut, key=ends.__getitem__)
    others = f", and {len(cut) - 1} more end after it" if len(cut) > 1 else ""
    told = f"it is cut short: it has {size} bytes, and "
    return [f"{told}tensor {shown(last)} ends at byte {ends[last]}{others}"]


def _misplaced(entries: Mapping[str, GgufEntry], alignment: int) -> list[str]:
    """Return what is wrong with tensors whose bytes do not end where the next begin.

    A wrong type or size shows in this.
    """
    placed = sorted(entries.items(), key=lambda each: each[1].begin)
    wrong = list[str]()
    for (name, entry), (following, after) in pairwise(placed):
        end = _end(entry)
        if end > after.begin:
            what = f"it ends at byte {end}, within {shown(following)}"
        elif after.begin - end >= alignment:
            gap = after.begin - end
            what = f"it ends {gap} bytes before {shown(following)}, its type is wrong"
        else:
            continue
        wrong.append(f"tensor {shown(name)}: {entry.kind}: {what}")
    return wrong


Sizes = Callable[[int], tuple[str, int, int] | None]


def _entry(shape: tuple[int, ...], number: int, begin: int, sizes: Sizes) -> GgufEntry:
    found = sizes(number)
    if found is None:
        raise ValueError(f"the gguf package knows no type {number}")
    kind, elements, nbytes = found
    if 0 in shape:
        raise ValueError(f"its sizes are {list(shape)}")
    columns = shape[-1] if shape else 1
    if columns % elements:
        raise ValueError(f"{kind} has blocks of {elements}, a row has {columns}")
    return GgufEntry(kind, shape, begin, columns // elements * nbytes)


def _block_sizes() -> Sizes:
    """Return a function: number of a type -> its name, and a block's sizes.

    These are the numbers of elements and of bytes.

    Raises:
        MissingPackage: the gguf package is not installed.
    """
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ModuleNotFoundError as error:
        raise MissingPackage(
            what="reading a GGUF file",
            package="gguf",
            reason="it is not installed",
            install="pip install 'kvc[gguf]'",
        ) from error
    known = {int(t): (t.name, *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}
    return known.get
