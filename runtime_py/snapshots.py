"""Sessions on disk: written whole or not at all, checked before memory is touched.

A file is a magic number, a version and the header's size, a header in JSON, the bytes
of each state in the order of the program, and the SHA-256 of all that. Of states whose
slots behind the position are dead, and of those that grow, only the valid slots are
there; so a file is as long as the conversation, not as the cache. It belongs to one
program, told by its digest. A checksum is no signature: whatever a file says of sizes
and positions is checked against the program as well.
"""

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import ge
from typing import BinaryIO, Final

import numpy as np

from kvc.runtime.arrays import Array, copy_into, own_copy, prefix
from kvc.runtime.positions import (
    choose_capacity,
    choose_sizes,
    count_rows,
    find_position,
)
from kvc.runtime.rings import find_rings, reached_by
from kvc.runtime.states import StateMemory, Tip
from kvc.runtime.transactions import check_usable
from kvc.schema.closing import Closing
from kvc.schema.container import AtomicFile, path_text
from kvc.schema.errors import (
    BadSetting,
    BadSnapshot,
    CannotWrite,
    FileProblem,
    SavedUnsynced,
    UnknownName,
    reason_of,
)
from kvc.schema.model import PositionKind, Program, State, StateKind

MAGIC: Final = b"\x89KVCS\r\n\n"
VERSION: Final = 0
_LEAD: Final = struct.Struct("<8sIQ")  # magic, version, bytes of the header
_DIGEST_NBYTES: Final = 32
_CHUNK_NBYTES: Final = 8 << 20
_MOST_HEADER: Final = 64 << 20
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its session.

    Attributes:
        program: digest of the program, in hexadecimal.
        sizes: of the symbols that the session fixed.
        capacity: its greatest position, None where nothing limits it.
        counted: the position where the session counts it, for each row.
        lengths: of the states that grow; 0 for the others.
        written: slots from here on are not in the file, of states where they are dead.
        reached: the furthest that each row's rings were written up to; empty where
            there are none.
        states: for each state: name, dtype, shape in the file, bytes.
    """

    program: str
    sizes: Mapping[str, int]
    capacity: int | None
    counted: Sequence[int]
    lengths: Sequence[int]
    written: int
    reached: Sequence[int]
    states: Sequence[Mapping[str, object]]

    @property
    def wanted_capacity(self) -> int | None:
        """Return the capacity to open the session with, beside its sizes."""
        return None if "capacity" in self.sizes else self.capacity


class _SnapshotFile(AtomicFile):
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
    tip, written = memory.tip, min(memory.written, _MOST)
    reached = _reached(program, memory)
    held = max(reached, default=0)
    shapes = state_shapes(program, memory.sizes, tip.lengths, written, held)
    header = Header(
        program=digest,
        sizes=memory.sizes,
        capacity=memory.capacity,
        counted=tip.counted,
        lengths=tip.lengths,
        written=written,
        reached=reached,
        states=_describe(program.states, shapes),
    )
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    total = hashlib.sha256()
    with _SnapshotFile(file_name) as file:
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
        self._path, self._program = path_text(path), program
        self._file, self._nbytes = _open(self._path)
        try:
            self._start = self._read_lead()
            self._check_digest()
            self.header = self._read_header(digest)
            self._shapes = self._check_header()
            self._check_position()
        except OSError as error:
            self._file.close()
            raise _problem(self._path, error) from error
        except BaseException:
            self._file.close()
            raise

    def load(self, memory: StateMemory) -> None:
        """Read the states into the memory of a new session.

        Raises:
            FileProblem, BadSnapshot: the file can no longer be read.
        """
        self._file.seek(self._start)
        for array, shape in zip(memory.arrays, self._shapes, strict=True):
            copy_into(prefix(array, shape), self._read_array(shape, array.dtype))
        memory.written = self.header.written
        memory.reached = list(self.header.reached)
        memory.tip = Tip(tuple(self.header.lengths), tuple(self.header.counted))

    def _read_lead(self) -> int:
        """Return where the states begin, after a check of magic number and version."""
        lead = self._file.read(_LEAD.size)
        self._require(lead[:8] == MAGIC, "it is no saved session")
        whole = self._nbytes >= _LEAD.size + _DIGEST_NBYTES
        self._require(whole, "it is cut short")
        _, version, nbytes = _LEAD.unpack(lead)
        self._require(version == VERSION, f"it has version {version}, not {VERSION}")
        most = min(_MOST_HEADER, self._nbytes - _LEAD.size - _DIGEST_NBYTES)
        self._require(nbytes <= most, f"its header has {nbytes} bytes")
        return _LEAD.size + int(nbytes)

    def _check_digest(self) -> None:
        total, left = hashlib.sha256(), self._nbytes - _DIGEST_NBYTES
        self._file.seek(0)
        while left and (chunk := self._file.read(min(left, _CHUNK_NBYTES))):
            total.update(chunk)
            left -= len(chunk)
        same = self._file.read(_DIGEST_NBYTES) == total.digest()
        self._require(same, "it is damaged: its bytes do not have their digest")

    def _read_header(self, digest: str) -> Header:
        self._file.seek(_LEAD.size)
        try:
            found = json.loads(self._file.read(self._start - _LEAD.size))
        except (ValueError, RecursionError):
            found = None
        self._require(isinstance(found, dict), "its header is no JSON object")
        self._require(set(found) == set(Header.__slots__), "its header has other parts")
        header = Header(**found)
        of = f"it is of program {header.program}, this one is {digest}"
        self._require(header.program == digest, of)
        return header

    def _check_header(self) -> list[tuple[int, ...]]:
        """Return the shapes of the states, after a check of what is said of them."""
        header, program = self.header, self._program
        self._require(_is_count(header.written), f"written is {header.written!r}")
        self._require(isinstance(header.sizes, dict), "its sizes are no object")
        try:
            sizes = choose_sizes(program, header.sizes)
            capacity = choose_capacity(program, sizes, header.wanted_capacity)
        except (BadSetting, UnknownName) as error:
            raise BadSnapshot(path=self._path, reason=str(error)) from error
        self._require(sizes == header.sizes, "its sizes are not all there")
        self._require(capacity == header.capacity, f"capacity {header.capacity!r}")
        self._check_counts("counted", header.counted, count_rows(program, sizes))
        self._check_counts("lengths", header.lengths, len(program.states))
        rings = find_rings(program.states, sizes)
        rows = len(header.reached) if rings and isinstance(header.reached, list) else 0
        self._check_counts("reached", header.reached, rows)
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
        there = self._nbytes - _DIGEST_NBYTES - self._start
        self._require(nbytes == there, f"its states have {there} bytes, not {nbytes}")
        return shapes

    def _check_counts(self, name: str, counts: object, number: int) -> None:
        listed = isinstance(counts, list) and len(counts) == number
        self._require(listed, f"{name} is no list of {number}")
        assert isinstance(counts, list)
        self._require(all(map(_is_count, counts)), f"{name} is {counts}")

    def _check_position(self) -> None:
        """Check that the position is one that the session may have."""
        position, header = self._program.position, self.header
        if position is None:
            return
        found: Sequence[int] = header.counted
        if position.kind is PositionKind.STATE and position.state is not None:
            found = self._read_state(position.state).reshape(-1).tolist()
        elif position.kind is PositionKind.LENGTH:
            found = header.lengths
        most = _MOST if header.capacity is None else header.capacity
        inside = all(0 <= count <= most for count in found)
        self._require(inside, f"position {list(found)} of a capacity of {most}")
        if find_rings(self._program.states, header.sizes):
            reached = header.reached
            known = len(reached) == len(found)
            known = known and all(map(ge, reached, found))
            self._require(known, f"reached {reached} at position {list(found)}")

    def _read_state(self, state: int) -> Array:
        """Return what the file holds of a state."""
        states = self._program.states
        before = zip(states[:state], self._shapes, strict=False)
        self._file.seek(self._start + sum(_nbytes(s, shape) for s, shape in before))
        return self._read_array(self._shapes[state], states[state].type.dtype.numpy)

    def _read_array(
        self, shape: tuple[int, ...], dtype: "np.dtype[np.generic]"
    ) -> Array:
        array: Array = np.empty(shape, dtype)
        try:
            read = self._file.readinto(array.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]
        except OSError as error:
            raise _problem(self._path, error) from error
        self._require(read == array.nbytes, "it became shorter while it was read")
        return array

    def _require(self, holds: bool, reason: str) -> None:
        if not holds:
            raise BadSnapshot(path=self._path, reason=reason)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()


def _parts(
    text: bytes, memory: StateMemory, shapes: Sequence[tuple[int, ...]]
) -> Iterator[bytes | memoryview]:
    """Yield what a file holds, apart from its digest."""
    yield _LEAD.pack(MAGIC, VERSION, len(text))
    yield text
    for array, shape in zip(memory.arrays, shapes, strict=True):
        yield own_copy(prefix(array, shape)).reshape(-1).view(np.uint8).data


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


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _open(path: str) -> tuple[BinaryIO, int]:
    """Open a plain file; return it and its size."""
    try:
        fd = os.open(path, _OPEN)
    except (OSError, ValueError) as error:
        raise _problem(path, error) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise FileProblem(path=path, reason="it is not a plain file")
    return os.fdopen(fd, "rb"), status.st_size


def _problem(path: str, error: Exception) -> FileProblem:
    return FileProblem(path=path, reason=reason_of(error))
