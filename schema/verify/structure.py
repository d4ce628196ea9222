"""The FlatBuffers verifier: check that a buffer is exactly as kvc's writer makes it.

In: bytes, and the layout of `program.fbs` (`kvc.schema._generated`). Out: nothing, or
`BadStructure`. The verifier is strict: exactly one offset refers to each table, vector
or string; these parts do not overlap; gaps between parts are zero padding; no bytes
follow the last part; and every field that is not optional is present. The verifier does
not recurse, and checks the size of a vector or string before it reads the elements. The
codec and `semantics.py` check the meaning of the numbers.
"""

import struct
from itertools import pairwise
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvc.schema._generated import TABLES, Field
from kvc.schema.errors import BadMagic, BadStructure, LimitExceeded
from kvc.schema.frozen import frozen
from kvc.schema.verify.limits import MAX_PROGRAM_NBYTES, MAX_TABLES

HEADER_NBYTES: Final = 8  # root offset, file identifier
_OTHER: Final = "; if another build of kvc wrote it, compile it again with this one"
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_U16: Final = struct.Struct("<H")
Ints = NDArray[np.int64]


def verify_structure(buffer: bytes, root: str, identifier: bytes, path: str) -> None:
    """Check that `buffer` is one table `root` and nothing else.

    Raises:
        BadMagic: the file identifier is not `identifier`.
        BadStructure: any other rule of the format is violated.
        LimitExceeded: the buffer, or its number of tables, is too large.
    """
    if len(buffer) > MAX_PROGRAM_NBYTES:
        raise LimitExceeded(
            path=path,
            what=f"{root}, in bytes,",
            found=len(buffer),
            limit=MAX_PROGRAM_NBYTES,
        )
    if buffer[4:HEADER_NBYTES] != identifier:
        found = buffer[4:HEADER_NBYTES]
        raise BadMagic(
            path=path, found=repr(found), guess=f"something other than {identifier!r}"
        )
    _Walk(buffer, path).run(root)


@frozen
class _Layout:
    """Where fields lie in a table; tables with the same vtable have the same layout.

    Attributes:
        nbytes: size of such a table, in bytes.
        fields: each field that is present, and its offset from the start of the table.
        gaps: start and end of each gap between fields.
    """

    nbytes: int
    fields: tuple[tuple[Field, int], ...]
    gaps: tuple[tuple[int, int], ...]


class _Walk:
    """One pass over a buffer, which collects the byte ranges that offsets refer to."""

    def __init__(self, buffer: bytes, path: str) -> None:
        self.buffer = buffer
        self.octets = np.frombuffer(buffer, np.uint8)
        self.path = path
        self.starts: list[int] = []  # of the regions that were reached
        self.ends: list[int] = []
        self.vtables: set[int] = set()
        self.layouts: dict[tuple[str, int], _Layout] = {}
        self.queue: list[tuple[str, int]] = []
        self.tables = 0

    def run(self, root: str) -> None:
        self.claim(0, HEADER_NBYTES)
        self.push(root, 0)
        while self.queue:
            self.check_table(*self.queue.pop())
        self.check_regions()

    def fail(self, position: int, text: str) -> NoReturn:
        raise BadStructure(path=self.path, offset=position, what=text)

    def require(self, condition: bool, position: int, text: str) -> None:
        if not condition:
            self.fail(position, text)

    def claim(self, start: int, end: int) -> None:
        if end > len(self.buffer):
            self.fail(start, "reaches past the end")
        self.starts.append(start)
        self.ends.append(end)

    def number(self, fmt: struct.Struct, position: int) -> int:
        if not 0 <= position <= len(self.buffer) - fmt.size or position % fmt.size:
            self.fail(position, "misplaced number")
        value: int = fmt.unpack_from(self.buffer, position)[0]
        return value

    def target(self, position: int) -> int:
        """Return the position, further on, to which an offset refers."""
        offset = self.number(_U32, position)
        if not offset:
            self.fail(position, "an offset is zero")
        return position + offset

    def push(self, table: str, position: int) -> None:
        self.tables += 1
        if self.tables > MAX_TABLES:
            raise LimitExceeded(
                path=self.path,
                what="the number of tables",
                found=self.tables,
                limit=MAX_TABLES,
            )
        self.queue.append((table, self.target(position)))

    def check_table(self, name: str, position: int) -> None:
        """Check a table's fields and gaps, and its vtable, which tables may share."""
        vtable = position - self.number(_I32, position)
        layout = self.layouts.get((name, vtable))
        if layout is None:
            layout = self.layouts[name, vtable] = self.read_vtable(name, vtable)
        self.claim(position, position + layout.nbytes)
        for start, stop in layout.gaps:
            if any(self.buffer[position + start : position + stop]):
                self.fail(position + start, "padding is not zero")
        for field, offset in layout.fields:
            self.check_field(name, field, position + offset)

    def read_vtable(self, name: str, vtable: int) -> _Layout:
        """Decode a vtable; its fields must be those of the tables named `name`."""
        vtable_nbytes = self.number(_U16, vtable)
        nbytes = self.number(_U16, vtable + 2)
        fields = TABLES[name]
        fits = vtable_nbytes % 2 == 0 and 4 <= vtable_nbytes <= 4 + 2 * len(fields)
        self.require(fits, vtable, f"a table {name} with other fields{_OTHER}")
        if vtable not in self.vtables:
            self.vtables.add(vtable)
            self.claim(vtable, vtable + vtable_nbytes)
        found: list[tuple[Field, int]] = []
        for slot, field in enumerate(fields):
            entry = vtable + 4 + 2 * slot
            offset = self.number(_U16, entry) if entry < vtable + vtable_nbytes else 0
            present = offset > 0 or field[4]
            self.require(present, vtable, f"{name}.{field[0]} is missing{_OTHER}")
            if offset:
                found.append((field, offset))
        return _Layout(nbytes, tuple(found), self.gaps(vtable, nbytes, found))

    def gaps(
        self, vtable: int, nbytes: int, fields: list[tuple[Field, int]]
    ) -> tuple[tuple[int, int], ...]:
        """Return start and end of each gap between fields; fields must not overlap."""
        sizes = [(at, field[3] if field[1] == "scalar" else 4) for field, at in fields]
        used = sorted([(0, 4), *((at, at + size) for at, size in sizes)])
        used.append((nbytes, nbytes))
        found = [(end, start) for (_, end), (start, _) in pairwise(used)]
        for start, stop in found:
            self.require(0 <= stop - start < 8, vtable, "fields overlap, or a hole")
        return tuple((start, stop) for start, stop in found if stop > start)

    def check_field(self, table: str, field: Field, position: int) -> None:
        name, shape, element, nbytes, _, members = field
        if shape == "vector of scalar":
            self.check_numbers(table, field, self.target(position))
        elif shape == "scalar":
            if position % nbytes:
                self.fail(position, f"{table}.{name} is misaligned")
            if members and self.buffer[position] >= members:
                self.fail(position, f"{table}.{name} has a value that does not exist")
        elif shape == "table":
            self.push(element, position)
        elif shape == "string":
            self.check_string(self.target(position))
        else:
            self.check_offsets(element, self.target(position))

    def check_numbers(self, table: str, field: Field, position: int) -> None:
        """Check a vector of numbers."""
        count, first = self.number(_U32, position), position + 4
        if first % field[3]:
            self.fail(position, f"{table}.{field[0]} is misaligned")
        end = first + count * field[3]
        self.claim(position, end)
        if field[5] and np.any(self.octets[first:end] >= field[5]):
            self.fail(position, f"{table}.{field[0]} has a value that does not exist")

    def check_offsets(self, element: str, position: int) -> None:
        """Check a vector of tables or strings."""
        count, first = self.number(_U32, position), position + 4
        self.claim(position, first + 4 * count)
        if element != "string":
            for i in range(count):
                self.push(element, first + 4 * i)
            return
        offsets = np.frombuffer(self.buffer, "<u4", count, first).astype(np.int64)
        self.require(bool(np.all(offsets > 0)), position, "an offset is zero")
        self.check_strings(first + 4 * np.arange(count) + offsets)

    def check_string(self, position: int) -> None:
        """Check a string's length, its UTF-8 text without NUL, and the final NUL."""
        start = position + 4
        end = start + self.number(_U32, position)
        closed = end < len(self.buffer) and not self.buffer[end]
        self.require(closed, position, "a string has no end")
        self.check_text(start, end)
        self.claim(position, end + 1)

    def check_strings(self, positions: Ints) -> None:
        """Check many strings at once, as `check_string` checks each of them."""
        if not len(positions):
            return
        size, first = len(self.buffer), int(positions[0])
        fits = np.all((positions % 4 == 0) & (positions <= size - 4))
        self.require(bool(fits), first, "a string is misplaced")
        words = np.frombuffer(self.buffer, "<u4", size // 4)
        ends = positions + 4 + words[positions // 4]
        fits = np.all(ends < size)
        self.require(
            bool(fits) and not np.any(self.octets[ends]), first, "a string has no end"
        )
        for start, end in zip((positions + 4).tolist(), ends.tolist(), strict=True):
            self.check_text(start, end)
        self.starts += positions.tolist()
        self.ends += (ends + 1).tolist()

    def check_text(self, start: int, end: int) -> None:
        text = self.buffer[start:end]
        self.require(b"\0" not in text, start, "a string holds NUL")
        try:
            text.decode()
        except UnicodeDecodeError:
            self.require(False, start, "a string is not UTF-8")

    def check_regions(self) -> None:
        """Check that byte ranges do not overlap and that gaps are zero padding."""
        starts, ends = np.array(self.starts), np.array(self.ends)
        order = np.argsort(starts, kind="stable")
        before = ends[order]
        after = np.append(starts[order][1:], len(self.buffer))
        gaps = after - before
        worst = int(np.argmin(gaps))
        self.require(int(gaps[worst]) >= 0, int(after[worst]), "two parts overlap")
        widest = int(np.argmax(gaps))
        self.require(int(gaps[widest]) < 8, int(before[widest]), "a hole")
        for k in range(7):
            padding = before[gaps > k] + k
            self.require(not np.any(self.octets[padding]), 0, "padding is not zero")
