"""Limits of a bundle, and the reporter of errors, which say where in the file.

A file that exceeds a limit raises `LimitExceeded` before anything in it is used. The
limits are far above real models: a model of 1000 layers has 4000 states. They are far
below sizes that harm a reader: a table takes 25 microseconds to check and read, so the
maximum number of tables takes about a second (measured 2026-11-26).
"""

from collections import Counter
from typing import Final, NoReturn

from kvc.schema.errors import BadProgram, LimitExceeded
from kvc.schema.graph import Instruction

MAX_PROGRAM_NBYTES: Final = 64 << 20
MAX_INDEX_NBYTES: Final = 8 << 20
MAX_TABLES: Final = 40_000
MAX_METHODS: Final = 64
MAX_VARIANTS: Final = 7  # recipes in addition to the first
MAX_BLOCKS: Final = 10_000  # of a method
MAX_DEPTH: Final = 64  # of nested blocks
MAX_BUCKETS: Final = 64  # of a symbol
MAX_BUCKETS_TOGETHER: Final = MAX_BUCKETS**2  # of all symbols in a dim
MAX_COMBINATIONS: Final = 1 << 16  # of sizes of a partition of fixed shapes
MAX_FILES: Final = 256  # each is an open descriptor
MAX_BLOBS: Final = 100_000  # of a program, and of an index
MAX_STATES: Final = 10_000
MAX_NAMES: Final = 1_000_000
MAX_VALUES: Final = 1_000_000
MAX_INSTRUCTIONS: Final = 1_000_000
MAX_LIST: Final = 100_000  # items of one list argument, arguments of one instruction
MAX_RANK: Final = 8
MAX_DIM: Final = (1 << 31) - 1
MAX_SYMBOLS_TOGETHER: Final = 6  # in the types and sizes of one instruction
MAX_TENSOR_NBYTES: Final = 1 << 40
MAX_BLOB_ALIGN: Final = 1 << 16
MAX_NAME_NBYTES: Final = 256
SCRATCH_ALIGN: Final = 64


class Reporter:
    """Reporter that raises errors about one file."""

    def __init__(self, path: str, within: str = "") -> None:
        """Set how messages begin: with the path of the file and a part of it."""
        self.path, self.within = path, within

    def fail(self, where: str, what: str) -> NoReturn:
        """Raise `BadProgram` about the part `where` of the file; `what` is wrong."""
        raise BadProgram(path=self.path, where=self.within + where, what=what)

    def require(self, condition: bool, where: str, what: str) -> None:
        """Raise `BadProgram` unless the condition holds."""
        if not condition:
            self.fail(where, what)

    def limit(self, what: str, found: int, limit: int) -> None:
        """Raise `LimitExceeded` if `found` is more than `limit`."""
        if found > limit:
            raise LimitExceeded(
                path=self.path, what=self.within + what, found=found, limit=limit
            )

    def name(self, name: str, where: str) -> None:
        """Check that a name is not empty, not too long, and printable."""
        self.require(bool(name), where, "a name is empty")
        self.text(name, where)

    def text(self, text: str, where: str) -> None:
        """Check that a text is not too long, and printable."""
        if len(text.encode()) > MAX_NAME_NBYTES:
            self.fail(where, f"{text[:40]!r}... is longer than {MAX_NAME_NBYTES} bytes")
        if not text.isprintable():
            self.fail(where, f"{text!r} has characters that cannot be printed")

    def unique(self, names: list[str], where: str) -> None:
        """Check each name, and that no name occurs twice."""
        if len(set(names)) != len(names):
            (twice, _), *_ = Counter(names).most_common(1)
            self.fail(where, f"{twice!r} is there twice")
        for name in names:
            self.name(name, where)


def place(where: str, index: int, step: Instruction) -> str:
    """Describe an instruction for a message, by graph (`where`), index and source."""
    source = f" ({step.source})" if step.source else ""
    return f"{where}, instruction {index}, {step.op}{source}"
