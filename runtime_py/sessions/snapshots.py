"""Save sessions to files; check such files, and restore sessions from them.

In: a session's memory, or a path. Out: a file, or an open `Snapshot`.
`snapshot_files.py` has the file format. Only the valid slots of caches and growing
states are saved, so the file size depends on the conversation, not on the cache size. A
file belongs to one program, whose identity it names. The checksum does not protect from
forged files, so the sizes and positions in a file are checked against the program as
well. States are written and read in small parts, so that saving does not double the
memory of the states.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, compress
from operator import ge
from typing import Final

import numpy as np

from kvc.runtime.data.checked_file import (
    DIGEST_NBYTES,
    MOST_HEADER,
    write_checked,
)
from kvc.runtime.memory.arrays import Part, parts_of
from kvc.runtime.sessions.sizes import (
    capacity_symbol,
    choose_capacity,
    choose_sizes,
    count_rows,
)
from kvc.runtime.sessions.snapshot_files import MOST, VERSION, Header, SnapshotFile
from kvc.runtime.states.kind import Kind
from kvc.runtime.states.owner import ALL_SLOTS, Span
from kvc.runtime.states.row_adapters import has_rows
from kvc.runtime.states.session_states import StateMemory
from kvc.runtime.states.table import kind_of
from kvc.schema.closing import Closing
from kvc.schema.container import SESSION_MAGIC, path_text
from kvc.schema.dtypes import DType
from kvc.schema.errors import (
    BadSetting,
    BadSnapshot,
    UnknownName,
)
from kvc.schema.model import Cursor, CursorKind, Program, State
from kvc.schema.types import evaluate

_BUFFER_NBYTES: Final = 8 << 20


def save_snapshot(
    path: str | os.PathLike[str],
    program: Program,
    identity: str,
    memory: StateMemory,
    attached: Mapping[str, object],
) -> None:
    """Write a session's states to a file, marked with the program's identity.

    Raises:
        BadSetting: `path` is not a path, or `attached` cannot be written as JSON.
        Poisoned: an earlier call failed and left states partly written.
        CannotWrite: the system refuses the write; the old file is untouched.
        Unsynced: the file is written, but may not survive a crash of the system.
    """
    memory.check_usable()
    file_name = path_text(path)
    position = memory.known_position()
    marks = memory.lengths, _written(memory), _reached(memory, position)
    shapes = state_shapes(program, memory.sizes, *marks)
    header = Header(
        program=identity,
        sizes=memory.sizes,
        capacity=memory.capacity,
        position=position,
        pending=memory.pending,
        counted=memory.counted[0],
        others=memory.counted[1:],
        lengths=marks[0],
        written=marks[1],
        reached=marks[2],
        states=_describe(program.states, shapes),
        attached=attached,
        adapters=memory.adapters.recorded if memory.adapters else (),
    )
    text = _written_header(header)
    parts = _parts(memory, shapes)
    write_checked(file_name, SESSION_MAGIC, VERSION, text, parts)


def _written_header(header: Header) -> bytes:
    """Return the header as JSON.

    Raises:
        BadSetting: what is attached cannot be written, or is too large.
    """
    try:
        text = json.dumps(header.as_written(), separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        expected, found = f"JSON ({error})", repr(header.attached)[:80]
        raise BadSetting(name="attached", expected=expected, found=found) from error
    if len(text) > MOST_HEADER:
        expected, found = f"at most {MOST_HEADER:,} bytes of JSON", f"{len(text):,}"
        raise BadSetting(name="attached", expected=expected, found=found)
    return text


def state_shapes(
    program: Program,
    sizes: Mapping[str, int],
    lengths: Sequence[int],
    written: int,
    reached: Sequence[int],
) -> list[tuple[int, ...]]:
    """Return the shape of the part of each state that is saved.

    Args:
        program: the program of the states.
        sizes: the sizes of symbols.
        lengths: the length of each growing state; 0 for other states.
        written: the header field `written`.
        reached: the header field `reached`.
    """
    slots = {"written": written, "reached": max(reached, default=0)}
    shapes = []
    for state, length in zip(program.states, lengths, strict=True):
        shape = list(state.type.shape(sizes))
        found = {**slots, "lengths": length}.get(kind_of(state).recorded)
        if found is not None and state.axis is not None:
            shape[state.axis] = min(found, shape[state.axis])
        shapes.append(tuple(shape))
    return shapes


class Snapshot(Closing):
    """An open file of a saved session, fully checked; use it in a `with` statement.

    Attributes:
        header: the header of the file.
    """

    def __init__(
        self, path: str | os.PathLike[str], program: Program, known: Sequence[str]
    ) -> None:
        """Open and check a file.

        Args:
            path: the path of the file.
            program: the program that will continue the session.
            known: the program's identity, and the program's digest, which older files
                name instead.

        Raises:
            BadSetting: `path` is not a path.
            FileProblem: the system cannot read the file.
            BadSnapshot: the file is damaged, or was saved by a different program.
        """
        self._file, self._program = SnapshotFile(path), program
        self._require, self.header = self._file.require, self._file.header
        try:
            own, other = known[0][:16], self.header.program[:16]  # as in `kvc dump`
            of = f"it is of program {other}, this one is {own}; open it with its own"
            self._require(self.header.program in known, of)
            self._shapes = self._check_header()
            nbytes = map(_nbytes, program.states, self._shapes)
            self._begins = list(accumulate(nbytes, initial=0))
            # Tokens for every row, or for no row.
            if pending := self.header.pending:
                rows = count_rows(self._program, self.header.sizes)
                self._check_number("pending", pending, rows)
            self._check_position()
        except BaseException:
            self._file.close()
            raise

    def load(self, memory: StateMemory) -> None:
        """Read the states into the memory of a new session.

        Raises:
            FileProblem, BadSnapshot: the file can no longer be read.
            NotLoaded: a row has an adapter that the program has not loaded.
        """
        for number, shape in enumerate(self._shapes):
            kind, span = _place(memory, number, shape)
            begin = self._begins[number]
            dtype = memory.states[number].type.dtype
            for part, held in _parts_of(dtype, shape):
                content = self._file.read_array(begin, held, dtype.numpy)
                kind.store.write(span, content, part)
                begin += content.nbytes
        header = self.header
        found = {"written": [header.written], "reached": header.reached}
        for kind in memory.kinds:
            kind.reached = list(found.get(kind.recorded, ()))
        memory.lengths[:] = header.lengths
        memory.pending = tuple(map(tuple, self.header.pending))
        memory.written = True
        if memory.adapters is not None:
            try:
                memory.adapters.restore(memory, header.adapters)
            except BadSetting as error:
                raise BadSnapshot(path=self._file.path, reason=str(error)) from error
        others = map(tuple, header.others)
        memory.counted = (tuple(header.counted), *others)
        self._note_ends(memory)
        memory.settle()

    def _note_ends(self, memory: StateMemory) -> None:
        """Record the loaded positions as those after the last writes of states.

        A state has such positions for all cursors except its own.
        """
        for number, rows in enumerate(memory.known_positions()):
            for kind in memory.kinds:
                if rows is not None and kind.group.first.cursor != number:
                    kind.ends[number] = rows

    @property
    def wanted_capacity(self) -> int | None:
        """Return the `capacity` with which to open a session for the file."""
        header = self.header
        sized = capacity_symbol(self._program) in header.sizes
        return None if sized else header.capacity

    def _check_header(self) -> list[tuple[int, ...]]:
        """Check the header against the program; return the states' saved shapes."""
        header, program = self.header, self._program
        try:
            sizes = choose_sizes(program, header.sizes)
            capacity = choose_capacity(program, sizes, self.wanted_capacity)
        except (BadSetting, UnknownName) as error:
            raise BadSnapshot(path=self._file.path, reason=str(error)) from error
        for name, symbol in ((one.name, one) for one in program.symbols):
            found = header.sizes.get(name)
            fits = found is None or symbol.takes(found)
            what = f"its {name} {found}, which is none of {symbol.allowed}"
            self._require(fits, what)
        self._require(sizes == header.sizes, "its sizes are not all there")
        self._require(capacity == header.capacity, f"capacity {header.capacity!r}")
        self._check_number("counted", header.counted, count_rows(program, sizes))
        numbers = range(1, max(1, len(program.cursors)))
        rows_of = [count_rows(program, sizes, number) for number in numbers]
        fits = list(map(len, header.others)) == rows_of
        self._require(fits, f"others is no list of {rows_of}")
        self._check_number("lengths", header.lengths, len(program.states))
        if header.adapters:
            rows = count_rows(program, sizes) if has_rows(program) else 0
            self._check_number("adapters", header.adapters, rows)
        rows = len(header.reached) if self._goes_round() else 0
        self._check_number("reached", header.reached, rows)
        for state, length in zip(program.states, header.lengths, strict=True):
            grows = kind_of(state).grows and state.axis is not None
            most = state.type.shape(sizes)[state.axis or 0] if grows else 0
            self._require(length <= most, f"{state.name} has length {length}")
        marks = header.lengths, header.written, header.reached
        shapes = state_shapes(program, sizes, *marks)
        expected = _describe(program.states, shapes)
        self._require(header.states == expected, "its states are not the program's")
        nbytes = sum(map(_nbytes, program.states, shapes))
        there = self._file.nbytes - DIGEST_NBYTES - self._file.start
        self._require(nbytes == there, f"its states have {there} bytes, not {nbytes}")
        return shapes

    def _check_number(self, name: str, counts: Sequence[object], number: int) -> None:
        self._require(len(counts) == number, f"{name} is no list of {number}")

    def _check_position(self) -> None:
        """Check that a session of the header's sizes can have the header's position."""
        position, header = self._program.position, self.header
        if position is None:
            self._require(header.position is None, f"position {header.position}")
            return
        found = self._found_position(position, 0)
        self._check_inside(found, header.capacity)
        for number, cursor in enumerate(self._program.cursors[1:], 1):
            dim = cursor.capacity
            most = None if dim is None else evaluate(dim, header.sizes)
            self._check_inside(self._found_position(cursor, number), most)
        if header.position is not None:
            grown = position.kind is CursorKind.LENGTH
            rows = found[:1] * len(header.counted) if grown else found
            self._require(header.position == rows, f"position {header.position}")
        if self._goes_round():
            reached = header.reached
            known = len(reached) == len(found)
            known = known and all(map(ge, reached, found))
            self._require(known, f"reached {reached} at position {list(found)}")

    def _check_inside(self, found: Sequence[int], capacity: int | None) -> None:
        most = MOST if capacity is None else capacity
        inside = all(0 <= count <= most for count in found)
        self._require(inside, f"position {list(found)} of a capacity of {most}")

    def _found_position(self, cursor: Cursor, number: int) -> list[int]:
        """Return the position of each row at a cursor, as the file has it.

        The position is the content of a counter state, a header field, or the length of
        growing states, depending on the kind of the cursor.
        """
        header, states = self.header, self._program.states
        match cursor.kind:
            case CursorKind.STATE:
                assert cursor.state is not None
                dtype = self._program.states[cursor.state].type.dtype.numpy
                counts = self._file.read_array(
                    self._begins[cursor.state], self._shapes[cursor.state], dtype
                )
                return [int(count) for count in counts.reshape(-1)]
            case CursorKind.SESSION:
                return list((header.counted, *header.others)[number])
            case CursorKind.LENGTH:
                own = any(state.cursor == number for state in states)
                grows = [
                    kind_of(state).grows and (state.cursor == number or not own)
                    for state in states
                ]
                return list(compress(header.lengths, grows)) or [0]

    def _goes_round(self) -> bool:
        return any(kind_of(s).recorded == "reached" for s in self._program.states)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _parts(
    memory: StateMemory, shapes: Sequence[tuple[int, ...]]
) -> Iterator[memoryview]:
    """Yield the bytes of the states."""
    for number, shape in enumerate(shapes):
        kind, span = _place(memory, number, shape)
        for part, _ in _parts_of(memory.states[number].type.dtype, shape):
            yield kind.store.read(span, part).reshape(-1).view(np.uint8).data


def _parts_of(
    dtype: DType, shape: tuple[int, ...]
) -> Iterator[tuple[Part, tuple[int, ...]]]:
    """Yield parts of a state that each fit into the buffer, and the parts' shapes."""
    return parts_of(shape, _BUFFER_NBYTES // dtype.itemsize)


def _place(
    memory: StateMemory, number: int, shape: tuple[int, ...]
) -> tuple[Kind, Span]:
    """Return the kind object of a state, and the span of its slots in the file."""
    kind, index = memory.find(number)
    axis = kind.group.first.axis
    return kind, Span(high=ALL_SLOTS if axis is None else shape[axis], state=index)


def _written(memory: StateMemory) -> int:
    """Return the slot that follows the last slot written by calls in any cache."""
    kinds = (kind for kind in memory.kinds if kind.recorded == "written")
    return min(max((max(k.reached, default=0) for k in kinds), default=0), MOST)


def _reached(memory: StateMemory, position: Sequence[int] | None) -> list[int]:
    """Return for each row the furthest position that ring buffers were written at.

    The list is empty if the program has no ring buffers.
    """
    kinds = [kind for kind in memory.kinds if kind.recorded == "reached"]
    rows = [kind.reach(position or ()) for kind in kinds]
    return [max(reached) for reached in zip(*rows, strict=True)]


def _describe(
    states: Sequence[State], shapes: Sequence[tuple[int, ...]]
) -> list[dict[str, object]]:
    return [
        {
            "name": state.name,
            "dtype": state.type.dtype.label,
            "shape": list(shape),
            "nbytes": _nbytes(state, shape),
        }
        for state, shape in zip(states, shapes, strict=True)
    ]


def _nbytes(state: State, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * state.type.dtype.itemsize
