"""Read FlatBuffers that kvc did not write, and check every number in them.

In: bytes, and the names of the fields of each table, in the order of its schema. Out:
numbers, texts and tables, or `BadStructure`. Each read is checked against the buffer's
end, and the total of all reads is limited.
"""

import struct
from collections.abc import Iterator
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvc.schema.errors import BadStructure, LimitExceeded

MAX_ITEMS: Final = 4_000_000  # of all vectors and tables that are read
MAX_NAME_NBYTES: Final = 1024
Fields = tuple[str, ...]


class Buffer:
    """The bytes of one FlatBuffer, and the number of items read so far."""

    def __init__(self, content: bytes, path: str) -> None:
        self.content = content
        self.path = path
        self._items = 0

    def root(self, fields: Fields) -> "Table":
        """Return the root table of the buffer."""
        return Table(self, self.follow(0), fields)

    def fail(self, position: int, what: str) -> NoReturn:
        """Raise `BadStructure` with the text `what`."""
        raise BadStructure(path=self.path, offset=position, what=what)

    def count(self, items: int) -> None:
        """Add `items` to the number of items read.

        Raises:
            LimitExceeded: the number is larger than any program needs.
        """
        self._items += items
        if self._items > MAX_ITEMS:
            raise LimitExceeded(
                path=self.path,
                what="the number of tables and list items",
                found=self._items,
                limit=MAX_ITEMS,
            )

    def number(self, code: str, position: int) -> int | float | bool:
        """Return the number at a position; `code` is its format in `struct`."""
        form = struct.Struct(f"<{code}")
        if not 0 <= position <= len(self.content) - form.size:
            self.fail(position, "a number lies outside")
        found: int | float | bool = form.unpack_from(self.content, position)[0]
        return found

    def integer(self, code: str, position: int) -> int:
        """Return the integer at a position."""
        return int(self.number(code, position))

    def follow(self, position: int) -> int:
        """Return the position that the offset at a position points to."""
        offset = self.integer("I", position)
        if not offset:
            self.fail(position, "an offset is zero")
        return position + offset

    def vector(self, position: int, item_nbytes: int) -> tuple[int, int]:
        """Return the position of a vector's first item, and the number of items."""
        count, first = self.integer("I", position), position + 4
        if first + count * item_nbytes > len(self.content):
            self.fail(position, "a list reaches past the end")
        return first, count


class Table:
    """One table; missing fields have their default."""

    def __init__(self, buffer: Buffer, position: int, fields: Fields) -> None:
        buffer.count(1)
        self._buffer, self._position, self._fields = buffer, position, fields
        self._vtable = position - buffer.integer("i", position)
        self._slots = (buffer.integer("H", self._vtable) - 4) // 2

    def _place(self, name: str) -> int | None:
        """Return the position of a field, None if it is missing."""
        slot = self._fields.index(name)
        if slot >= self._slots:
            return None
        offset = self._buffer.integer("H", self._vtable + 4 + 2 * slot)
        return self._position + offset if offset else None

    def _target(self, name: str) -> int | None:
        place = self._place(name)
        return None if place is None else self._buffer.follow(place)

    def integer(self, name: str, code: str) -> int:
        """Return a field's integer, 0 if the field is missing."""
        place = self._place(name)
        return 0 if place is None else self._buffer.integer(code, place)

    def number(self, name: str, code: str) -> int | float | bool:
        """Return a field's number, 0 if the field is missing."""
        place = self._place(name)
        return 0 if place is None else self._buffer.number(code, place)

    def name(self, field: str) -> str:
        """Return the text of a field that is a name.

        Raises:
            LimitExceeded: the name is too long for the columns of a printed table.
        """
        nbytes = self.nbytes(field)
        if nbytes > MAX_NAME_NBYTES:
            raise LimitExceeded(
                path=self._buffer.path,
                what="the bytes of a name",
                found=nbytes,
                limit=MAX_NAME_NBYTES,
            )
        return self.text(field)

    def text(self, name: str) -> str:
        """Return a field's text, "" if missing; bytes that are no UTF-8 are escaped."""
        place = self._target(name)
        if place is None:
            return ""
        first, count = self._buffer.vector(place, 1)
        self._buffer.count(count)
        return self._buffer.content[first : first + count].decode(
            errors="backslashreplace"
        )

    def nbytes(self, name: str) -> int:
        """Return the length of a list of bytes, without reading the bytes."""
        place = self._target(name)
        return 0 if place is None else self._buffer.vector(place, 1)[1]

    def numbers(self, name: str, dtype: str) -> NDArray[np.generic]:
        """Return a list of numbers of a NumPy dtype."""
        place, kind = self._target(name), np.dtype(dtype).newbyteorder("<")
        if place is None:
            return np.empty(0, kind)
        first, count = self._buffer.vector(place, kind.itemsize)
        self._buffer.count(count)
        return np.frombuffer(self._buffer.content, kind, count, first)

    def integers(self, name: str, dtype: str) -> tuple[int, ...]:
        """Return a list of integers."""
        return tuple(self.numbers(name, dtype).tolist())

    def table(self, name: str, fields: Fields) -> "Table | None":
        """Return the table of a field, None if the field is missing."""
        place = self._target(name)
        return None if place is None else Table(self._buffer, place, fields)

    def tables(self, name: str, fields: Fields) -> "Iterator[Table]":
        """Yield the tables of a list."""
        place = self._target(name)
        if place is None:
            return
        first, count = self._buffer.vector(place, 4)
        for index in range(count):
            yield Table(self._buffer, self._buffer.follow(first + 4 * index), fields)
