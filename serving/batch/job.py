"""`Job`: run all rows of a batch that have no outcome yet.

    lines --row_of--> rows, in blocks by size --Answerer--> outcomes --> journal

In: lines of the input, a journal, what answers rows. Out: the journal has an outcome
for each line; `write_output` puts them in order.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from kvc.schema.container.temporary import AtomicFile
from kvc.schema.frozen import frozen
from kvc.serving.batch.answering import Answerer
from kvc.serving.batch.ids import Ids
from kvc.serving.batch.journal import Journal
from kvc.serving.batch.lines import Line, Readable, lines_of
from kvc.serving.batch.rows import Row, row_of

_BLOCK_ROWS: Final = 512
_BLOCK_NBYTES: Final = 32 << 20
_PIECE: Final = 1 << 20


@frozen
class Progress:
    """How far a batch is.

    Attributes:
        done: how many rows have an outcome.
        failed: how many of them have failed.
        new: how many rows were done by this process.
        tokens: how many tokens this process has made.
        seconds: for how long it has run.
    """

    done: int
    failed: int
    new: int
    tokens: int
    seconds: float


class Job:
    """The rows of one input.

    Attributes:
        journal: has the outcomes.
        tokens: how many tokens of answers were made.
    """

    def __init__(
        self, file: Readable, journal: Journal, watch: Callable[[Progress], None]
    ) -> None:
        """Prepare to read the input; nothing has run yet.

        Args:
            file: the input.
            journal: has the outcomes of earlier runs, if there are any.
            watch: is told often how far the batch is.
        """
        self.journal, self._watch = journal, watch
        self._file, self._ids = file, Ids()
        self._seen = bytearray()  # 1 for each line that is in the input
        self.tokens = self.new = 0
        self._began = time.monotonic()

    def run(self, answerer: Answerer) -> None:
        """Answer all rows that have no outcome.

        Raises:
            KvcError: the input cannot be read, the journal cannot be written or is of
                another input, or nothing can be answered any more.
        """
        for row in by_size(self._rows()):
            while answerer.room < 1:
                self._keep(answerer, None)
            answerer.start(row)
            self._keep(answerer, 0)
        while answerer.running:
            self._keep(answerer, None)
        self.journal.index.keep(self._seen)
        self.journal.sync()

    def started(self, line: Line) -> None:
        """Note that a line is in the input."""
        if (more := line.number + 1 - len(self._seen)) > 0:
            self._seen.extend(bytes(more))
        self._seen[line.number] = 1

    def _rows(self) -> Iterator[Row]:
        for line in lines_of(self._file):
            self.started(line)
            row = row_of(line, self._ids)  # its id counts even if it is done
            if not self.journal.has(line):
                yield row

    def _keep(self, answerer: Answerer, seconds: float | None) -> None:
        """Write the outcomes that there are; wait for one at most so long."""
        for outcome in answerer.take(seconds):
            self.journal.add(outcome)
            self.new += 1
            self.tokens += outcome.tokens
        self._watch(self.progress)

    @property
    def progress(self) -> Progress:
        """Return how far the batch is."""
        index, seconds = self.journal.index, time.monotonic() - self._began
        return Progress(index.count, index.failed, self.new, self.tokens, seconds)


class StreamingJob(Job):
    """A job that writes outcomes as soon as those of all lines before are written."""

    def __init__(
        self,
        file: Readable,
        journal: Journal,
        watch: Callable[[Progress], None],
        out: BinaryIO,
    ) -> None:
        """Write to an open file; as `Job` otherwise."""
        super().__init__(file, journal, watch)
        self._out, self._left = out, deque[int]()

    def started(self, line: Line) -> None:
        """Note that a line is in the input."""
        super().started(line)
        self._left.append(line.number)

    def _keep(self, answerer: Answerer, seconds: float | None) -> None:
        super()._keep(answerer, seconds)
        written = False
        while self._left:
            raw = self.journal.outcome(self._left[0])
            if raw is None:
                break
            self._out.write(raw)
            written = True
            self._left.popleft()
        if written:
            self._out.flush()


def by_size(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows so that those of similar length follow each other.

    They are sorted within blocks, of which every second one goes down, so that memory
    is bounded and the ends of blocks are alike.
    """
    goes_down = True
    for block in _blocks(rows):
        yield from sorted(block, key=lambda row: row.size, reverse=goes_down)
        goes_down = not goes_down


def _blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    block, nbytes = list[Row](), 0
    for row in rows:
        block.append(row)
        nbytes += row.size
        if len(block) >= _BLOCK_ROWS or nbytes >= _BLOCK_NBYTES:
            yield block
            block, nbytes = [], 0
    if block:
        yield block


def write_output(journal: Journal, path: str | os.PathLike[str]) -> None:
    """Write all outcomes of a journal to a file, in the order of the input.

    The file is put in place when it is complete and on disk.

    Raises:
        CannotWrite: the system refuses, for example because the disk is full.
        Unsynced: the file is in place, but may not survive a crash.
        FileProblem: the journal cannot be read.
    """
    with AtomicFile(path) as file:
        parts, nbytes = list[bytes](), 0
        for number in range(len(journal.index)):
            raw = journal.outcome(number)
            if raw is None:
                continue
            parts.append(raw)
            nbytes += len(raw)
            if nbytes >= _PIECE:
                file.write(b"".join(parts))
                parts, nbytes = [], 0
        file.write(b"".join(parts))
        file.commit()
