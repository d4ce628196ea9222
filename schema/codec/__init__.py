"""The codec: converts a `Program`, or an index of blobs, to bytes and back.

Equal programs give equal bytes. Decoding does not trust the bytes: first the structural
verifier checks the buffer, then all ids are checked, then the dataclasses are made.
`kvc.schema.verify` checks the meaning of the decoded program. Only this package knows
the layout of a buffer.
"""

from collections.abc import Sequence
from typing import Final

from kvc.schema.codec.late_blocks import LateBlocks
from kvc.schema.codec.programs import (
    blobs_record,
    program_record,
    read_blobs,
    read_program,
)
from kvc.schema.codec.records import TableReader, write
from kvc.schema.garbage import collection_paused
from kvc.schema.model import Blob, Program
from kvc.schema.verify.structure import verify_structure

__all__ = [
    "LateBlocks",
    "decode",
    "decode_index",
    "encode",
    "encode_index",
]

PROGRAM: Final = b"KVCP"
INDEX: Final = b"KVCD"


def encode(program: Program) -> bytes:
    """Encode a program as the bytes that a bundle contains.

    Raises:
        BadProgram: an expression uses a symbol that is not declared.
        OverflowError, TypeError: a number is out of its field's range; the program
            does not pass `kvc.schema.verify.verify_program`.
    """
    return write(program_record(program), PROGRAM)


@collection_paused()
def decode(buffer: bytes, path: str, late: LateBlocks | None = None) -> Program:
    """Decode a program from `buffer`; error messages name the file by `path`.

    If `late` is given, blocks of a program with bound lists are decoded when they are
    first needed.

    Raises:
        FormatError: `buffer` does not hold an encoded program.
    """
    verify_structure(buffer, "Program", PROGRAM, path)
    return read_program(TableReader.root(buffer, "Program"), path, late)


def encode_index(blobs: Sequence[Blob]) -> bytes:
    """Encode the index of a data file; raise the errors of `encode`."""
    return write(blobs_record(blobs), INDEX)


@collection_paused()
def decode_index(buffer: bytes, path: str) -> tuple[Blob, ...]:
    """Decode the index of a data file, its blobs; raise the errors of `decode`."""
    verify_structure(buffer, "Blobs", INDEX, path)
    return read_blobs(TableReader.root(buffer, "Blobs"), path)
