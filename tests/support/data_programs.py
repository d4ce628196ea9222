"""Programs for tests of named data, and bundles of them with separate data files.

`table_program` has a table; one method reads one row of it, another method reads all
rows. `shared_program` has a state whose initial value has the same bytes as a constant.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from hand_built import F32, I64, Built, adding_graph, method, program, write_bundle

from kvc.schema.codec import encode
from kvc.schema.container import (
    HEADER_NBYTES,
    Header,
    align_up,
    default_align,
    pack_header,
)
from kvc.schema.container.header import FORMAT_VERSION
from kvc.schema.digests import blob_digest
from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.model import Blob, NamedData, ResetRule, State, StateKind
from kvc.schema.types import TensorType

COLUMNS = 1024


def write_data_bundle(path: Path, built: Built, external: bool = False) -> Path:
    """Write a program as a bundle; with `external`, with a data file beside it."""
    return write_bundle(path, built, external=external)


def table_of(rows: int) -> np.ndarray:
    """Return float32 [rows, 1024]; all numbers of row i are i."""
    return np.repeat(np.arange(rows, dtype=np.float32), COLUMNS).reshape(rows, COLUMNS)


def table_program(rows: int, **others: np.ndarray) -> Built:
    """Return a program with the data `table` and `others`, and methods over the table.

    `row(index)` returns the row float32 [1, 1024] at an index int64 [1]; `total()`
    returns the sum of all rows.
    """
    table, index = TensorType(F32, (rows, COLUMNS)), TensorType(I64, (1,))
    line, nbytes = TensorType(F32, (1, COLUMNS)), 4 * COLUMNS
    chosen, summed = (Ref(1), 0, Ref(0)), (Ref(0), (0,), True)
    row = Graph(
        values=(
            Value(index, Scratch(0, 8)),
            Value(table, Constant(0)),
            Value(line, Scratch(64, nbytes)),
        ),
        inputs=(0,),
        outputs=(2,),
        instructions=(Instruction("aten::index_select", chosen, (2,), "table:1"),),
        scratch_nbytes=64 + nbytes,
        peak_nbytes=8 + nbytes,
    )
    total = Graph(
        values=(Value(table, Constant(0)), Value(line, Scratch(0, nbytes))),
        inputs=(),
        outputs=(1,),
        instructions=(Instruction("aten::sum.dim_IntList", summed, (1,), "table:2"),),
        scratch_nbytes=nbytes,
        peak_nbytes=nbytes,
    )
    arrays: Mapping[str, np.ndarray] = {"table": table_of(rows), **others}
    return program([method("row", row, ["index"]), method("total", total, [])], arrays)


def shared_program(length: int) -> Built:
    """Return a program whose state and constant share one blob.

    `add(x)` adds x to the state; `plus(x)` returns the sum of x and the constant.
    """
    kind, nbytes = TensorType(F32, (length,)), 4 * length
    add = adding_graph(kind, nbytes)
    plus = Graph(
        values=(
            Value(kind, Scratch(0, nbytes)),
            Value(kind, Constant(1)),
            Value(kind, Scratch(nbytes, nbytes)),
        ),
        inputs=(0,),
        outputs=(2,),
        instructions=(Instruction("aten::add.Tensor", (Ref(1), Ref(0), 1), (2,)),),
        scratch_nbytes=2 * nbytes,
        peak_nbytes=2 * nbytes,
    )
    plain, initial = StateKind.PLAIN, ResetRule.INITIAL
    state = State("sum", kind, plain, None, (0,), 0, initial, None)
    start = np.arange(length, dtype=np.float32)
    adding = method("add", add, ["x"], reads=(0,), writes=(0,))
    arrays = {"start": start, "constant": start}
    return program([adding, method("plus", plus, ["x"])], arrays, states=[state])


def write_behind_a_hole(path: Path, built: Built, nbytes: int) -> Path:
    """Write a program as a bundle that begins with a blob of `nbytes` zeros, `hole`.

    The zeros take no space on disk, and do not have the blob's digest. `nbytes` is a
    multiple of 1 GiB.
    """
    made, arrays = built
    gib = 1 << 30
    kind = TensorType(DType.UINT8, (nbytes // gib, gib))
    hole = NamedData("hole", len(arrays), kind, "plain", "test")
    end = align_up(HEADER_NBYTES, 1 << 16)
    blobs = [Blob(bytes(32), nbytes, 0, end, 1 << 16)]
    end += nbytes
    with path.open("wb") as file:
        for array in arrays.values():
            raw = array.tobytes()
            offset = align_up(end, default_align(len(raw)))
            file.seek(offset)
            file.write(raw)
            end = offset + len(raw)
            align = default_align(len(raw))
            blobs.append(Blob(blob_digest(raw), len(raw), 0, offset, align))
        names = (*made.names, hole)
        placed = replace(made, blobs=(*blobs[1:], blobs[0]), names=names)
        tail, offset = encode(placed), align_up(end, 64)
        file.seek(offset)
        file.write(tail)
        size, digest = offset + len(tail), sha256(tail).digest()
        file.seek(0)
        header = Header(FORMAT_VERSION, 0, size, offset, len(tail), digest)
        file.write(pack_header(header))
    return path
