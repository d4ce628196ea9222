"""The journal of a batch: outcomes in the order in which rows end, safe on disk.

A line of the journal is the CRC-32 of what follows, the number of the row's line in the
input, what identifies that line, whether the row has failed, and the outcome as it will
stand in the output:

    8d3f00aa 12 00c0ffee00c0ffee ok {"id": 12, "generated_text": ...}

The first line says which batch it is. A last line without a line feed was torn by a
crash, and is cut off; a damaged line is left out, so that its row is done again.
"""

import fcntl
import json
import os
import time
import zlib
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Self

from kvc.schema.closing import Closing
from kvc.schema.errors import (
    BadJournal,
    BatchDiffers,
    BatchRunning,
    CannotWrite,
    FileProblem,
    reason_of,
)
from kvc.schema.frozen import frozen
from kvc.serving.batch.lines import Line
from kvc.serving.batch.outcomes import Outcome

SUFFIX: Final = ".journal"
_MAGIC: Final = "kvc batch journal"
_START: Final = b'{"journal": "kvc batch journal"'
_VERSION: Final = 1
_BETWEEN_SYNCS: Final = 2.0  # seconds
_NONE: Final = -1
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@frozen
class Identity:
    """Which batch a journal is of.

    Attributes:
        bundle: the digest of the bundle.
        settings: the digest of what all rows have: settings, capacity, adapters.
        input: the digest of the input file; "" for stdin, whose lines are compared one
            by one.
    """

    bundle: str
    settings: str
    input: str


@frozen
class Place:
    """Where a journal has the outcome of a line.

    Attributes:
        offset: where it begins, in bytes.
        key: what identifies the line of the input.
        has_failed: whether the row has failed.
    """

    offset: int
    key: int
    has_failed: bool


class Index:
    """Where a journal has the outcome of each line of the input: 17 bytes a line.

    Attributes:
        count: how many lines have an outcome.
        failed: how many of them have failed.
    """

    def __init__(self) -> None:
        self._offsets, self._keys, self._failed = array("q"), array("Q"), bytearray()
        self.count = self.failed = 0

    def get(self, number: int) -> Place | None:
        """Return where the outcome of a line is, None if there is none."""
        if number >= len(self._offsets) or self._offsets[number] == _NONE:
            return None
        failed = bool(self._failed[number])
        return Place(self._offsets[number], self._keys[number], failed)

    def put(self, number: int, place: Place) -> None:
        """Note where the outcome of a line is."""
        self.drop(number)
        if (more := number + 1 - len(self._offsets)) > 0:
            more = max(more, len(self._offsets) // 8, 1024)
            self._offsets.extend([_NONE] * more)
            self._keys.extend([0] * more)
            self._failed.extend(bytes(more))
        self._offsets[number], self._keys[number] = place.offset, place.key
        self._failed[number] = place.has_failed
        self.count += 1
        self.failed += place.has_failed

    def drop(self, number: int) -> None:
        """Forget the outcome of a line."""
        place = self.get(number)
        if place is not None:
            self._offsets[number] = _NONE
            self.count -= 1
            self.failed -= place.has_failed

    def keep(self, numbers: bytearray) -> None:
        """Forget all outcomes but those of lines with a 1 at their number."""
        for number in range(len(self)):
            if number >= len(numbers) or not numbers[number]:
                self.drop(number)

    def __len__(self) -> int:
        """Return a number above those of all lines."""
        return len(self._offsets)


class Journal(Closing):
    """An open journal; one process at a time has it.

    Attributes:
        path: the path of the file.
        index: where it has which outcome.
        damaged: how many lines were left out.
    """

    def __init__(self, path: Path, fd: int) -> None:
        """Hold an open file; use `begin` and `resume` instead."""
        self.path, self._fd = path, fd
        self.index = Index()
        self.damaged = 0
        self._end, self._anyway = 0, False
        self._synced = time.monotonic()

    @classmethod
    def begin(cls, path: Path, identity: Identity) -> Self:
        """Begin a journal, in place of an earlier one.

        Raises:
            CannotWrite: the file cannot be written.
            BatchRunning: another process has it.
        """
        journal = cls._opened(path)
        try:
            journal._cut(0)
            journal._append(_head_of(identity))
            journal.sync()
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def resume(cls, path: Path, identity: Identity, anyway: bool = False) -> Self:
        """Open a journal to go on with it.

        Args:
            path: the path of the file.
            identity: the batch that goes on.
            anyway: whether it may be another one: outcomes of equal lines stay.

        Raises:
            BatchDiffers: the journal is of another batch.
            BadJournal: the file is no journal.
            CannotWrite, FileProblem: the file cannot be written or read.
            BatchRunning: another process has it.
        """
        journal = cls._opened(path)
        try:
            journal._read(identity, anyway)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def _opened(cls, path: Path) -> Self:
        try:
            fd = os.open(path, _FLAGS, 0o666)
        except OSError as error:
            raise CannotWrite(path=str(path), reason=reason_of(error)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise BatchRunning(path=str(path)) from error
        except OSError:
            pass  # a file system without locks
        return cls(path, fd)

    def add(self, outcome: Outcome) -> None:
        """Append the outcome of a row; write it to disk now and then.

        Raises:
            CannotWrite: the system refuses, for example because the disk is full.
        """
        raw = outcome.raw
        state = "failed" if outcome.has_failed else "ok"
        line = f"{outcome.number} {outcome.key:016x} {state} ".encode() + raw
        begin = self._end
        self._append(f"{zlib.crc32(line):08x} ".encode() + line + b"\n")
        self.index.put(outcome.number, Place(begin, outcome.key, outcome.has_failed))
        if time.monotonic() - self._synced > _BETWEEN_SYNCS:
            self.sync()

    def sync(self) -> None:
        """Write what was appended to disk.

        Raises:
            CannotWrite: the system refuses.
        """
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._synced = time.monotonic()

    def has(self, line: Line) -> bool:
        """Tell whether the outcome of a line is here already.

        Raises:
            BatchDiffers: the line was another one when its outcome was made.
        """
        place = self.index.get(line.number)
        if place is None:
            return False
        if place.key == line.key:
            return True
        if not self._anyway:
            raise BatchDiffers(
                path=str(self.path),
                what="input",
                began=f"another line {line.number}",
                found=f"{line.raw[:40].decode('utf-8', 'replace')!r}",
            )
        self.index.drop(line.number)
        return False

    def outcome(self, number: int) -> bytes | None:
        """Return the outcome of a line, with a line feed; None if there is none.

        Raises:
            FileProblem: the file cannot be read, or has changed.
        """
        place = self.index.get(number)
        if place is None:
            return None
        try:
            raw = _read_line(self._fd, place.offset)
        except OSError as error:
            raise self._cannot_read(error) from error
        if _parsed(raw) is None:
            reason = f"the outcome of line {number} has changed"
            raise FileProblem(path=str(self.path), reason=reason)
        return raw.split(b" ", 4)[4]

    def remove(self) -> None:
        """Remove the file: the output has all."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Write what was appended to disk, if possible, and close the file."""
        if self._fd < 0:
            return
        with suppress(OSError):  # as if the machine had stopped before
            os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1

    def _read(self, identity: Identity, anyway: bool) -> None:
        self._anyway = anyway
        try:
            with open(self._fd, "rb", closefd=False) as file:
                head = file.readline()
                if not _is_torn_head(head):
                    self._check_head(head, identity, anyway)
                    self._note_all(head, file)
        except OSError as error:
            raise self._cannot_read(error) from error
        self._cut(self._end)
        if not self._end:
            self._append(_head_of(identity))

    def _note_all(self, head: bytes, file: BinaryIO) -> None:
        """Note the outcomes after the first line, up to where the file is torn."""
        self._end = len(head)
        for raw in iter(file.readline, b""):
            if not raw.endswith(b"\n"):
                return
            self._note(raw)
            self._end += len(raw)

    def _note(self, raw: bytes) -> None:
        """Note the outcome in a line of the journal, unless it is damaged."""
        found = _parsed(raw)
        if found is None:
            self.damaged += 1
            return
        number, key, has_failed = found
        self.index.put(number, Place(self._end, key, has_failed))

    def _check_head(self, head: bytes, identity: Identity, anyway: bool) -> None:
        """Check that the first line is of a batch.

        Raises:
            BadJournal: it is no journal's.
            BatchDiffers: it is another batch's.
        """
        try:
            found: object = json.loads(head)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("journal") != _MAGIC:
            raise BadJournal(path=str(self.path), reason="its first line says so")
        if found.get("version") != _VERSION:
            reason = f"version {found.get('version')}, this kvc writes {_VERSION}"
            raise BadJournal(path=str(self.path), reason=reason)
        for what, told in _told(identity).items():
            if found.get(what) != told and not anyway:
                began = str(found.get(what))[:16]
                raise BatchDiffers(
                    path=str(self.path), what=what, began=began, found=told[:16]
                )

    def _append(self, content: bytes) -> None:
        """Write at the end; what cannot be written whole is cut off again."""
        try:
            rest = memoryview(content)
            place = self._end
            while rest.nbytes:
                done = os.pwrite(self._fd, rest, place)
                rest, place = rest[done:], place + done
        except OSError as error:
            raise self._cannot_write(error) from error
        self._end += len(content)

    def _cut(self, end: int) -> None:
        try:
            os.ftruncate(self._fd, end)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> CannotWrite:
        return CannotWrite(path=str(self.path), reason=reason_of(error))

    def _cannot_read(self, error: OSError) -> FileProblem:
        return FileProblem(path=str(self.path), reason=reason_of(error))


def _told(identity: Identity) -> Mapping[str, str]:
    return {
        "bundle": identity.bundle,
        "settings": identity.settings,
        "input": identity.input,
    }


def _head_of(identity: Identity) -> bytes:
    """Return the first line of a journal."""
    fields = {"journal": _MAGIC, "version": _VERSION, **_told(identity)}
    return json.dumps(fields).encode() + b"\n"


def _is_torn_head(head: bytes) -> bool:
    """Tell whether a journal ends within its first line."""
    return not head.endswith(b"\n") and head[: len(_START)] == _START[: len(head)]


def _parsed(raw: bytes) -> tuple[int, int, bool] | None:
    """Return the number, the key and the failure in a line; None if it is damaged."""
    crc, _, line = raw.rstrip(b"\n").partition(b" ")
    parts = line.split(b" ", 3)
    try:
        if int(crc, 16) != zlib.crc32(line):
            return None
        return int(parts[0]), int(parts[1], 16), parts[2] == b"failed"
    except (ValueError, IndexError):
        return None


def _read_line(fd: int, offset: int) -> bytes:
    """Return the bytes from an offset to the next line feed."""
    size, parts = 4096, list[bytes]()
    while piece := os.pread(fd, size, offset):
        end = piece.find(b"\n")
        parts.append(piece if end < 0 else piece[: end + 1])
        if end >= 0:
            break
        offset, size = offset + len(piece), 1 << 20
    return b"".join(parts)
