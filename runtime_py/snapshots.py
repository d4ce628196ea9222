"""Sessions on disk: written whole or not at all, checked before memory is touched.

What a file consists of is in `snapshot_files.py`. Of states whose slots after the
position are dead, and of those that grow, only the valid slots are there; so a file is
as long as the conversation, not as the cache. It belongs to one program, told by its
digest. A checksum is no signature: whatever a file says of sizes and positions is
checked against the program as well.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from operator import ge

import numpy as np

from kvc.runtime.arrays import Array, copy_into, own_copy, prefix
from kvc.runtime.positions import (
    choose_capacity,
    choose_sizes,
    count_rows,
    find_position,
)
from kvc.runtime.rings import find_rings, reached_by
from kvc.runtime.snapshot_files import (
    DIGEST_NBYTES,
    LEAD,
    MOST,
    VERSION,
    Header,
    SnapshotFile,
)
from kvc.runtime.states import StateMemory, Tip
from kvc.runtime.transactions import check_usable
from kvc.schema.closing import Closing
from kvc.schema.container import SESSION_MAGIC, AtomicFile, path_text
from kvc.schema.errors import (
    BadSetting,
    BadSnapshot,
    CannotWrite,
    NoPosition,
    SavedUnsynced,
    UnknownName,
)
from kvc.schema.model import Cursor, CursorKind, Program, State, StateKind


class _NewFile(AtomicFile):
    problem = CannotWrite
    unsynced = SavedUnsynced


def save_snapshot(
    path: str | os.PathLike[str], program: Program, digest: str, memory: StateMemory
) -> None:
    """Write a session's states.

    Raises:
        BadSetting: `path` is no path.
        Poisoned: a call left them half written.
        CannotWrite: the system refuses; the old file is untouched.
        SavedUnsynced: the file is there, but may not outlive a crash.
    """
    check_usable(memory)
    file_name = path_text(path)
    tip, written = memory.tip, min(memory.written, MOST)
    reached = _reached(program, memory)
    held = max(reached, default=0)
    shapes = state_shapes(program, memory.sizes, tip.lengths, written, held)
    header = Header(
        program=digest,
        sizes=memory.sizes,
        capacity=memory.capacity,
        position=_position(program, memory),
        pending=memory.pending,
        counted=tip.counted,
        lengths=tip.lengths,
        written=written,
        reached=reached,
        states=_describe(program.states, shapes),
    )
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    total = hashlib.sha256()
    with _NewFile(file_name) as file:
        for part in _parts(text, memory, shapes):
            total.update(part)
            file.write(part)
        file.write(total.digest())
        file.commit()


def state_shapes(
    program: Program,
    sizes: Mapping[str, int],
    lengths: Sequence[int],
    written: int,
    reached: int,
) -> list[tuple[int, ...]]:
    """Return the shape of what a file holds of each state."""
    shapes = []
    for state, length in zip(program.states, lengths, strict=True):
        shape = list(state.type.shape(sizes))
        if state.axis is not None and state.kind is StateKind.APPEND:
            shape[state.axis] = length
        elif state.axis is not None and _ends_at_position(state):
            shape[state.axis] = min(written, shape[state.axis])
        elif state.axis is not None and state.window is not None:
            shape[state.axis] = min(reached, shape[state.axis])
        shapes.append(tuple(shape))
    return shapes


class Snapshot(Closing):
    """An open file that has passed every check; use it in a `with` statement.

    Attributes:
        header: what it says of its session.
    """

    def __init__(
        self, path: str | os.PathLike[str], program: Program, digest: str
    ) -> None:
        """Open and check a file.

        Raises:
            BadSetting: `path` is no path.
            FileProblem: the system cannot read it.
            BadSnapshot: it is damaged, or of another program.
        """
        self._file, self._program = SnapshotFile(path), program
        self._require, self.header = self._file.require, self._file.header
        try:
            of = f"it is of program {self.header.program!r}, this one is {digest!r}"
            self._require(self.header.program == digest, of)
            self._shapes = self._check_header()
            self._check_pending()
            self._check_position()
        except BaseException:
            self._file.close()
            raise

    def load(self, memory: StateMemory) -> None:
        """Read the states into the memory of a new session.

        Raises:
            FileProblem, BadSnapshot: the file can no longer be read.
        """
        for number, array in enumerate(memory.arrays):
            copy_into(prefix(array, self._shapes[number]), self._read_state(number))
        memory.pending = tuple(map(tuple, self.header.pending))
        memory.written = self.header.written
        memory.reached = list(self.header.reached)
        memory.tip = Tip(tuple(self.header.lengths), tuple(self.header.counted))

    def _check_header(self) -> list[tuple[int, ...]]:
        """Return the shapes of the states, after a check of what is said of them."""
        header, program = self.header, self._program
        try:
            sizes = choose_sizes(program, header.sizes)
            capacity = choose_capacity(program, sizes, header.wanted_capacity)
        except (BadSetting, UnknownName) as error:
            raise BadSnapshot(path=self._file.path, reason=str(error)) from error
        self._require(sizes == header.sizes, "its sizes are not all there")
        self._require(capacity == header.capacity, f"capacity {header.capacity!r}")
        self._check_number("counted", header.counted, count_rows(program, sizes))
        self._check_number("lengths", header.lengths, len(program.states))
        rings = find_rings(program.states, sizes)
        rows = len(header.reached) if rings else 0
        self._check_number("reached", header.reached, rows)
        for state, length in zip(program.states, header.lengths, strict=True):
            grows = state.kind is StateKind.APPEND and state.axis is not None
            most = state.type.shape(sizes)[state.axis or 0] if grows else 0
            self._require(length <= most, f"{state.name} has length {length}")
        held = max(header.reached, default=0)
        shapes = state_shapes(program, sizes, header.lengths, header.written, held)
        expected = _describe(program.states, shapes)
        self._require(header.states == expected, "its states are not the program's")
        nbytes = sum(
            _nbytes(s, shape) for s, shape in zip(program.states, shapes, strict=True)
        )
        there = self._file.nbytes - DIGEST_NBYTES - self._file.start
        self._require(nbytes == there, f"its states have {there} bytes, not {nbytes}")
        return shapes

    def _check_number(self, name: str, counts: Sequence[object], number: int) -> None:
        self._require(len(counts) == number, f"{name} is no list of {number}")

    def _check_pending(self) -> None:
        """Check that tokens to be fed next are there for each row, or for none."""
        if pending := self.header.pending:
            rows = count_rows(self._program, self.header.sizes)
            self._check_number("pending", pending, rows)

    def _check_position(self) -> None:
        """Check that the position is one that the session may have."""
        position, header = self._program.position, self.header
        if position is None:
            self._require(header.position is None, f"position {header.position}")
            return
        found = self._found_position(position)
        most = MOST if header.capacity is None else header.capacity
        inside = all(0 <= count <= most for count in found)
        self._require(inside, f"position {list(found)} of a capacity of {most}")
        if header.position is not None:
            grown = position.kind is CursorKind.LENGTH
            rows = found[:1] * len(header.counted) if grown else found
            self._require(header.position == rows, f"position {header.position}")
        if find_rings(self._program.states, header.sizes):
            reached = header.reached
            known = len(reached) == len(found)
            known = known and all(map(ge, reached, found))
            self._require(known, f"reached {reached} at position {list(found)}")

    def _found_position(self, position: Cursor) -> list[int]:
        """Return what the states say of the position, or the lengths of what grows."""
        header, states = self.header, self._program.states
        match position.kind:
            case CursorKind.STATE:
                assert position.state is not None
                counts = self._read_state(position.state)
                return [int(count) for count in counts.reshape(-1)]
            case CursorKind.SESSION:
                return list(header.counted)
            case CursorKind.LENGTH:
                grows = [state.kind is StateKind.APPEND for state in states]
                return list(compress(header.lengths, grows)) or [0]

    def _read_state(self, state: int) -> Array:
        """Return what the file holds of a state."""
        states = self._program.states
        before = zip(states[:state], self._shapes, strict=False)
        offset = sum(_nbytes(s, shape) for s, shape in before)
        dtype = states[state].type.dtype.numpy
        return self._file.read_array(offset, self._shapes[state], dtype)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()


def _parts(
    text: bytes, memory: StateMemory, shapes: Sequence[tuple[int, ...]]
) -> Iterator[bytes | memoryview]:
    """Yield what a file holds, apart from its digest."""
    yield LEAD.pack(SESSION_MAGIC, VERSION, len(text))
    yield text
    for array, shape in zip(memory.arrays, shapes, strict=True):
        yield own_copy(prefix(array, shape)).reshape(-1).view(np.uint8).data


def _position(program: Program, memory: StateMemory) -> list[int] | None:
    """Return the position of each row, None where nothing counts."""
    try:
        return find_position(program.position, memory)
    except NoPosition:
        return None


def _reached(program: Program, memory: StateMemory) -> list[int]:
    """Return how far rings were written, nothing without rings."""
    if not memory.rings:
        return []
    return reached_by(memory, find_position(program.position, memory))


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


def _ends_at_position(state: State) -> bool:
    return state.at_position and state.kind is StateKind.LINEAR
