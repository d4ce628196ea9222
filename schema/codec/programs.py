"""The tables of a program that its methods share: data, states, cursors.

`program_record` makes these tables; `read_program` reads them from a buffer that the
structural verifier has accepted.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from kvc.schema.codec.bounds import bounds_record, read_bounds
from kvc.schema.codec.graphs import GraphReader
from kvc.schema.codec.late_blocks import LateBlocks
from kvc.schema.codec.methods import (
    delegate_record,
    method_record,
    read_delegates,
    read_methods,
)
from kvc.schema.codec.pools import (
    Pool,
    PoolWriter,
    dim_fields,
    read_dim,
    read_pool,
)
from kvc.schema.codec.records import (
    FieldValue,
    Record,
    TableReader,
    build,
    check_ids,
    check_lengths,
    cut,
    octets,
    u32,
)
from kvc.schema.digests import DIGEST_NBYTES
from kvc.schema.errors import BadProgram
from kvc.schema.model import (
    Blob,
    Cursor,
    CursorKind,
    DataFile,
    NamedData,
    Program,
    ResetRule,
    State,
    StateKind,
    Variant,
)
from kvc.schema.provenance import Calibration, Provenance
from kvc.schema.rings import Window
from kvc.schema.types import Symbol


def program_record(program: Program) -> Record:
    """Return the record of a program."""
    pool = PoolWriter(program.symbols)
    metadata = sorted(program.metadata.items())
    fields: dict[str, FieldValue] = {
        "provenance": _provenance_record(program.provenance),
        "files": [
            Record("DataFile", {"name": file.name, "digest": octets(file.digest)})
            for file in program.files
        ],
        "blobs": blobs_record(program.blobs),
        "names": _names_record(program.names, pool),
        "states": [_state_record(state, pool) for state in program.states],
        "cursors": [_cursor_record(cursor, pool) for cursor in program.cursors],
        "methods": [method_record(method, pool) for method in program.methods],
        "delegates": [delegate_record(delegate) for delegate in program.delegates],
        "metadata_keys": [key for key, _ in metadata],
        "metadata_values": [text for _, text in metadata],
        "variants": [_variant_record(variant, pool) for variant in program.variants],
        **_bucket_fields(program.symbols),
    }
    fields["bounds"] = None if program.bounds is None else bounds_record(program.bounds)
    return Record("Program", {**fields, "pool": pool.record()})


def _provenance_record(provenance: Provenance) -> Record:
    return Record(
        "Provenance",
        {
            "kvc_version": provenance.kvc_version,
            "torch_version": provenance.torch_version,
            "recipe": provenance.recipe,
            "recipe_text": provenance.recipe_text,
            "source_digest": provenance.source_digest,
            "calibration": None
            if provenance.calibration is None
            else Record("Calibration", dataclasses.asdict(provenance.calibration)),
        },
    )


def blobs_record(blobs: Sequence[Blob]) -> Record:
    """Return the record of blobs, for a program or a data file."""
    return Record(
        "Blobs",
        {
            "digests": octets(b"".join(blob.digest for blob in blobs)),
            "nbytes": np.array([blob.nbytes for blob in blobs], np.uint64),
            "files": u32(blob.file for blob in blobs),
            "offsets": np.array([blob.offset for blob in blobs], np.uint64),
            "aligns": u32(blob.align for blob in blobs),
        },
    )


def _names_record(names: Sequence[NamedData], pool: PoolWriter) -> Record:
    return Record(
        "Names",
        {
            "names": [named.name for named in names],
            "blobs": u32(named.blob for named in names),
            "types": u32(pool.type(named.type) for named in names),
            "formats": u32(pool.string(named.format) for named in names),
            "provenances": u32(pool.string(named.provenance) for named in names),
        },
    )


def _state_record(state: State, pool: PoolWriter) -> Record:
    window = None
    if state.window is not None:
        window = Record("Window", dataclasses.asdict(state.window))
    return Record(
        "State",
        {
            "name": state.name,
            "type": pool.type(state.type),
            "kind": int(state.kind),
            "axis": state.axis,
            "layout": np.array(state.layout, np.uint8),
            "initial": state.initial,
            "reset": int(state.reset),
            "cursor": state.cursor,
            "window": window,
        },
    )


def _cursor_record(cursor: Cursor, pool: PoolWriter) -> Record:
    kind, capacity = dim_fields(cursor.capacity, pool)
    rows_kind, rows = dim_fields(cursor.rows, pool)
    return Record(
        "Cursor",
        {
            "name": cursor.name,
            "kind": int(cursor.kind),
            "state": cursor.state,
            "rows_kind": rows_kind,
            "rows": rows,
            "capacity_kind": kind,
            "capacity": capacity,
        },
    )


def _variant_record(variant: Variant, pool: PoolWriter) -> Record:
    return Record(
        "Variant",
        {
            "recipe": variant.recipe,
            "recipe_text": variant.recipe_text,
            "methods": [method_record(method, pool) for method in variant.methods],
            "delegates": [delegate_record(one) for one in variant.delegates],
            **_bucket_fields(variant.symbols),
        },
    )


def _bucket_fields(symbols: Sequence[Symbol]) -> dict[str, FieldValue]:
    sizes = [size for symbol in symbols for size in symbol.sizes]
    return {
        "bucket_ends": u32(accumulate(len(symbol.sizes) for symbol in symbols)),
        "bucket_sizes": np.array(sizes, np.int64),
    }


def read_program(
    table: TableReader, path: str, late: LateBlocks | None = None
) -> Program:
    """Return the program in a buffer that the structural verifier has accepted.

    If `late` is given and the program has bound lists, blocks are read later. The ids
    of named data are not checked; all other ids are.

    Raises:
        BadProgram: an id is out of range, or the lengths of vectors do not agree.
    """
    late = late if "bounds" in table else None
    pool = read_pool(table.child("pool"), path)
    graphs = GraphReader(pool, path)
    keys, texts = table.texts("metadata_keys"), table.texts("metadata_values")
    check_lengths(path, "metadata", keys, texts)
    if keys != sorted(set(keys)):
        raise BadProgram(path=path, where="metadata", what="keys are not ascending")
    return Program(
        provenance=_read_provenance(table.child("provenance")),
        symbols=_read_symbols(table, pool, path),
        files=tuple(
            DataFile(file.text("name"), file.octets("digest"))
            for file in table.children("files")
        ),
        blobs=read_blobs(table.child("blobs"), path),
        names=_read_names(table.child("names"), pool, path),
        states=tuple(_read_state(t, pool, path) for t in table.children("states")),
        cursors=tuple(_read_cursor(t, pool, path) for t in table.children("cursors")),
        methods=read_methods(table, graphs, pool, path, late),
        delegates=read_delegates(table),
        metadata=dict(zip(keys, texts, strict=True)),
        variants=tuple(
            Variant(
                recipe=one.text("recipe"),
                recipe_text=one.text("recipe_text"),
                methods=read_methods(one, graphs, pool, path, late),
                delegates=read_delegates(one),
                symbols=_read_symbols(one, pool, path),
            )
            for one in table.children("variants")
        ),
        bounds=read_bounds(table.child("bounds")) if "bounds" in table else None,
    )


def _read_symbols(table: TableReader, pool: Pool, path: str) -> tuple[Symbol, ...]:
    """Return the pool's symbols, with the buckets in a program's or variant's table."""
    ends, sizes = table.vector("bucket_ends"), table.integers("bucket_sizes")
    runs = cut(sizes, ends, len(pool.symbols), path, "buckets")
    pairs = zip(pool.symbols, runs, strict=True)
    return tuple(replace(symbol, sizes=run) for symbol, run in pairs)


def _read_provenance(table: TableReader) -> Provenance:
    return Provenance(
        kvc_version=table.text("kvc_version"),
        torch_version=table.text("torch_version"),
        recipe=table.text("recipe"),
        recipe_text=table.text("recipe_text"),
        source_digest=table.text("source_digest"),
        calibration=_read_calibration(table.child("calibration"))
        if "calibration" in table
        else None,
    )


def _read_calibration(table: TableReader) -> Calibration:
    return Calibration(
        kind=table.text("kind"),
        digest=table.text("digest"),
        samples=table.number("samples"),
        tokens=table.number("tokens"),
        method=table.text("method"),
    )


def read_blobs(table: TableReader, path: str) -> tuple[Blob, ...]:
    """Return the blobs in the table of a verified program or index.

    Raises:
        BadProgram: the lengths of vectors do not agree.
    """
    raw, nbytes = table.octets("digests"), table.integers("nbytes")
    digests = [raw[i : i + DIGEST_NBYTES] for i in range(0, len(raw), DIGEST_NBYTES)]
    files, offsets = table.integers("files"), table.integers("offsets")
    aligns = table.integers("aligns")
    check_lengths(path, "blobs", digests, nbytes, files, offsets, aligns)
    return tuple(build(Blob, digests, nbytes, files, offsets, aligns))


def _read_names(table: TableReader, pool: Pool, path: str) -> tuple[NamedData, ...]:
    where, texts = "named data", len(pool.strings)
    names, blobs = table.texts("names"), table.integers("blobs")
    types = check_ids(table.vector("types"), len(pool.types), path, where)
    formats = check_ids(table.vector("formats"), texts, path, where)
    provenances = check_ids(table.vector("provenances"), texts, path, where)
    check_lengths(path, where, names, blobs, types, formats, provenances)
    return tuple(
        build(
            NamedData,
            names,
            blobs,
            [pool.types[i] for i in types],
            [pool.strings[i] for i in formats],
            [pool.strings[i] for i in provenances],
        )
    )


def _read_state(table: TableReader, pool: Pool, path: str) -> State:
    name, number = table.text("name"), table.number("type")
    if number >= len(pool.types):
        what = f"type {number}, but there are {len(pool.types)}"
        raise BadProgram(path=path, where=f"state {name!r}", what=what)
    return State(
        name=name,
        type=pool.types[number],
        kind=StateKind(table.number("kind")),
        axis=table.optional_number("axis"),
        layout=tuple(table.integers("layout")),
        initial=table.optional_number("initial"),
        reset=ResetRule(table.number("reset")),
        cursor=table.optional_number("cursor"),
        window=_read_window(table.child("window")) if "window" in table else None,
    )


def _read_window(table: TableReader) -> Window:
    names = (field.name for field in dataclasses.fields(Window))
    return Window(**{name: table.number(name) for name in names})


def _read_cursor(table: TableReader, pool: Pool, path: str) -> Cursor:
    return Cursor(
        name=table.text("name"),
        kind=CursorKind(table.number("kind")),
        state=table.optional_number("state"),
        rows=read_dim(table, "rows", pool, path, "cursor"),
        capacity=read_dim(table, "capacity", pool, path, "cursor"),
    )
