"""Write tables of `program.fbs` from records, and read tables of a verified buffer.

A `Record` is a table to be written. A `TableReader` returns the fields of a table in a
verified buffer, a whole vector at a time. Both classes use the layout in
`kvc.schema._generated`, and neither class checks numbers. `check_ids`, `check_lengths`
and `cut` check numbers before decoders make objects from them: ids must be in range,
and a vector must be cut into parts without gaps. An error names the bad vector.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise, repeat
from operator import le
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvc.schema._generated import TABLES, Field
from kvc.schema.errors import BadProgram
from kvc.schema.frozen import frozen

if TYPE_CHECKING:
    from flatbuffers.builder import Builder

Numbers = NDArray[np.generic]
FieldValue: TypeAlias = "int | str | Numbers | Record | list[str] | list[Record] | None"


@frozen
class Record:
    """A table to be written: the table's name in the schema, and all its fields."""

    table: str
    fields: dict[str, FieldValue]


def write(root: Record, identifier: bytes) -> bytes:
    """Encode a table and all tables in it; `identifier` is the buffer's file id."""
    from flatbuffers.builder import Builder  # reading does without

    builder = Builder(1 << 16)
    builder.Finish(_write_table(builder, root), file_identifier=identifier)
    return bytes(builder.Output())


def _write_table(builder: "Builder", record: Record) -> int:
    layout = TABLES[record.table]
    assert record.fields.keys() == {field[0] for field in layout}, record.table
    offsets = {
        field[0]: _write_child(builder, field, record)
        for field in layout
        if field[1] != "scalar" and record.fields[field[0]] is not None
    }
    builder.StartObject(len(layout))
    for slot, (name, shape, element, *_) in enumerate(layout):
        value = record.fields[name]
        if value is None:
            continue
        if shape == "scalar":
            assert isinstance(value, int)
            getattr(builder, f"Prepend{element.capitalize()}")(value)
        else:
            builder.PrependUOffsetTRelative(offsets[name])
        builder.Slot(slot)
    offset: int = builder.EndObject()
    return offset


def _write_child(builder: "Builder", field: Field, record: Record) -> int:
    value = record.fields[field[0]]
    offset: int
    if isinstance(value, str):
        offset = builder.CreateString(value)
    elif isinstance(value, Record):
        offset = _write_table(builder, value)
    elif isinstance(value, np.ndarray):
        offset = builder.CreateNumpyVector(value.astype(field[2], copy=False))
    else:
        assert isinstance(value, list)
        offsets = [
            builder.CreateString(item)
            if isinstance(item, str)
            else _write_table(builder, item)
            for item in value
        ]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        offset = builder.EndVector()
    return offset


_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_U16: Final = struct.Struct("<H")


Layouts = dict[tuple[str, int], dict[str, tuple[Field, int]]]


class TableReader:
    """Reader of the fields of one table in a verified buffer, by field name."""

    def __init__(
        self, buffer: bytes, name: str, position: int, layouts: Layouts
    ) -> None:
        self.buffer = buffer
        self._start, self._layouts = position, layouts
        vtable = position - _I32.unpack_from(buffer, position)[0]
        known = layouts.get((name, vtable))
        if known is None:
            (nbytes,) = _U16.unpack_from(buffer, vtable)
            count = nbytes // 2 - 2
            offsets = struct.unpack_from(f"<{count}H", buffer, vtable + 4)
            pairs = zip(TABLES[name], offsets, strict=False)
            known = layouts[name, vtable] = {
                field[0]: (field, offset) for field, offset in pairs if offset
            }
        self._places = known

    @classmethod
    def root(cls, buffer: bytes, name: str) -> "TableReader":
        """Return the root table of a buffer."""
        return cls(buffer, name, _U32.unpack_from(buffer, 0)[0], {})

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def place(self, name: str) -> int:
        """Return the position of a field in the buffer, in bytes."""
        return self._start + self._places[name][1]

    def number(self, name: str) -> int:
        """Return the whole number in a field."""
        _, _, element, nbytes, *_ = self._places[name][0]
        position = self.place(name)
        raw = self.buffer[position : position + nbytes]
        return int.from_bytes(raw, "little", signed=element.startswith("int"))

    def optional_number(self, name: str) -> int | None:
        """Return the whole number in a field, None if the table lacks the field."""
        return self.number(name) if name in self else None

    def text(self, name: str) -> str:
        """Return the string in a field."""
        return self._string(self._target(name))

    def texts(self, name: str) -> list[str]:
        """Return the strings in a field that is a vector of strings."""
        return [self._string(position) for position in self._targets(name)]

    def vector(self, name: str) -> Numbers:
        """Return the numbers in a field that is a vector, as a read-only array."""
        return np.frombuffer(self.octets(name), self._places[name][0][2])

    def integers(self, name: str) -> list[int]:
        """Return the whole numbers in a field that is a vector."""
        numbers: list[int] = self.vector(name).tolist()
        return numbers

    def octets(self, name: str) -> bytes:
        """Return the bytes of the numbers in a field that is a vector."""
        field, offset = self._places[name]
        position = self._start + offset
        start = position + _U32.unpack_from(self.buffer, position)[0]
        nbytes = field[3] * _U32.unpack_from(self.buffer, start)[0]
        return self.buffer[start + 4 : start + 4 + nbytes]

    def child(self, name: str) -> "TableReader":
        """Return a reader of the table in a field."""
        return self._table(name, self._target(name))

    def children(self, name: str) -> "list[TableReader]":
        """Return a reader of each table in a field that is a vector of tables."""
        return [self._table(name, at) for at in self._targets(name)]

    def _table(self, name: str, position: int) -> "TableReader":
        kind = self._places[name][0][2]
        return TableReader(self.buffer, kind, position, self._layouts)

    def _target(self, name: str) -> int:
        position = self.place(name)
        offset: int = _U32.unpack_from(self.buffer, position)[0]
        return position + offset

    def _targets(self, name: str) -> list[int]:
        start = self._target(name)
        (count,) = _U32.unpack_from(self.buffer, start)
        offsets = np.frombuffer(self.buffer, "<u4", count, start + 4).astype(np.int64)
        positions: list[int] = (start + 4 + 4 * np.arange(count) + offsets).tolist()
        return positions

    def _string(self, position: int) -> str:
        (nbytes,) = _U32.unpack_from(self.buffer, position)
        return self.buffer[position + 4 : position + 4 + nbytes].decode()


T = TypeVar("T")


def u32(numbers: Iterable[int]) -> Numbers:
    """Return numbers as a uint32 vector."""
    return np.array(list(numbers), np.uint32)


def octets(raw: bytes) -> Numbers:
    """Return bytes as a uint8 vector."""
    return np.frombuffer(raw, np.uint8)


def build(kind: type[T], *columns: Sequence[object]) -> list[T]:
    """Return objects of the dataclass `kind`, made from columns of field values.

    Args:
        kind: a dataclass with slots and without `__post_init__`.
        columns: for each field of the dataclass, in order, the values of that field for
            all objects.
    """
    made: list[T] = list(map(object.__new__, repeat(kind, len(columns[0]))))
    for put, column in zip(_setters(kind), columns, strict=True):  # type: ignore[arg-type]
        deque(map(put, made, column), maxlen=0)
    return made


@cache
def _setters(kind: type) -> tuple[Callable[[object, object], None], ...]:
    """Return, for each field of a dataclass with slots, the function that sets it."""
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    return tuple(getattr(kind, name).__set__ for name in names)


def check_ids(ids: Numbers, count: int, path: str, where: str) -> list[int]:
    """Return ids as a list if all of them lie in `range(count)`.

    Raises:
        BadProgram: an id lies outside of the range.
    """
    numbers: list[int] = ids.tolist()
    if numbers and not (min(numbers) >= 0 and max(numbers) < count):
        bad = next(number for number in numbers if not 0 <= number < count)
        raise BadProgram(
            path=path, where=where, what=f"id {bad}, but there are {count}"
        )
    return numbers


def check_lengths(path: str, where: str, *vectors: Sequence[object] | Numbers) -> None:
    """Check that parallel vectors have the same length.

    Raises:
        BadProgram: their lengths differ.
    """
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        what = f"parallel vectors of {sorted(lengths)} entries"
        raise BadProgram(path=path, where=where, what=what)


def cut(
    items: Sequence[T], ends: Numbers, count: int, path: str, where: str
) -> list[tuple[T, ...]]:
    """Cut `items` into `count` consecutive parts; `ends` has each part's end index.

    Raises:
        BadProgram: the parts do not cover the items exactly.
    """
    bounds = [0, *ends.tolist()]
    ordered = all(map(le, bounds, bounds[1:]))
    if len(bounds) != count + 1 or not ordered or bounds[-1] != len(items):
        what = (
            f"{len(bounds) - 1} runs of {len(items)} items do not fit {count} entries"
        )
        raise BadProgram(path=path, where=where, what=what)
    whole = tuple(items)
    return [whole[a:b] for a, b in pairwise(bounds)]
