"""Write and read verdicts and accesses of writes over states and inputs, as columns."""

from collections.abc import Sequence

import numpy as np

from kvc.schema.codec.checks import check_ids, check_lengths, cut
from kvc.schema.codec.pools import SIZE, Pool, PoolWriter
from kvc.schema.codec.records import FieldValue, Record, TableReader
from kvc.schema.model import Access, AccessMode, Update

_DIM_KINDS = 2


def update_fields(updates: Sequence[Update], pool: PoolWriter) -> dict[str, FieldValue]:
    """Return the fields of a method or block that say what writes."""
    copies = [update.copies for update in updates]
    flat = [index for run in copies for index in run]
    return {
        "update_instructions": np.array([u.instruction for u in updates], np.uint32),
        "update_reasons": np.array([pool.string(u.reason) for u in updates], np.uint32),
        "update_copy_ends": np.cumsum([len(run) for run in copies], dtype=np.uint32),
        "update_copies": np.array(flat, np.uint32),
        "accesses": _accesses_record([update.accesses for update in updates], pool),
    }


def _accesses_record(runs: Sequence[Sequence[Access]], pool: PoolWriter) -> Record:
    flat = [access for run in runs for access in run]
    sizes = [(SIZE, 0) if a.size is None else pool.dim(a.size) for a in flat]
    return Record(
        "Accesses",
        {
            "ends": np.cumsum([len(run) for run in runs], dtype=np.uint32),
            "roots": np.array([access.root for access in flat], np.uint32),
            "modes": np.array([access.mode for access in flat], np.uint8),
            "axes": np.array([access.axis or 0 for access in flat], np.uint8),
            "size_kinds": np.array([kind for kind, _ in sizes], np.uint8),
            "sizes": np.array([size for _, size in sizes], np.int64),
        },
    )


def read_updates(
    table: TableReader, pool: Pool, path: str, where: str
) -> tuple[Update, ...]:
    """Return what writes; that ids lead somewhere is left to the semantic verifier.

    Raises:
        BadProgram: vectors do not fit each other, or name no text, mode or size.
    """
    instructions = table.integers("update_instructions")
    reasons = check_ids(table.vector("update_reasons"), len(pool.strings), path, where)
    check_lengths(path, where, instructions, reasons)
    ends, copies = table.vector("update_copy_ends"), table.integers("update_copies")
    runs = cut(copies, ends, len(instructions), path, where)
    accesses = _read_accesses(
        table.child("accesses"), pool, len(instructions), path, where
    )
    return tuple(
        Update(instruction, pool.strings[reason], run, made)
        for instruction, reason, run, made in zip(
            instructions, reasons, runs, accesses, strict=True
        )
    )


def _read_accesses(
    table: TableReader, pool: Pool, count: int, path: str, where: str
) -> list[tuple[Access, ...]]:
    roots, axes = table.integers("roots"), table.integers("axes")
    modes = check_ids(table.vector("modes"), len(AccessMode), path, where)
    kinds = check_ids(table.vector("size_kinds"), _DIM_KINDS, path, where)
    sizes = table.integers("sizes")
    check_lengths(path, where, roots, modes, axes, kinds, sizes)
    flat = [
        Access(root, AccessMode.ANYWHERE)
        if mode == AccessMode.ANYWHERE
        else Access(
            root, AccessMode(mode), axis, pool.read_dim(kind, size, path, where)
        )
        for root, mode, axis, kind, size in zip(
            roots, modes, axes, kinds, sizes, strict=True
        )
    ]
    return cut(flat, table.vector("ends"), count, path, where)
