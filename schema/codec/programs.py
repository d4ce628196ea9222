"""The tables of a program other than its graphs and pools.

`program_record` writes them; `read_program` reads a buffer that the structural verifier
has accepted.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from kvc.schema.codec.graphs import GraphReader, graph_record
from kvc.schema.codec.pools import (
    Pool,
    PoolWriter,
    read_pool,
    read_updates,
    update_fields,
)
from kvc.schema.codec.records import (
    FieldValue,
    Numbers,
    Record,
    TableReader,
    build,
    check_ids,
    check_lengths,
    cut,
)
from kvc.schema.digests import DIGEST_NBYTES
from kvc.schema.errors import BadProgram
from kvc.schema.model import (
    Advance,
    Blob,
    Block,
    Cursor,
    CursorKind,
    DataFile,
    Delegate,
    MemoryKind,
    Method,
    NamedData,
    Program,
    ResetRule,
    State,
    StateKind,
    Variant,
)
from kvc.schema.provenance import Calibration, Provenance
from kvc.schema.rings import Window
from kvc.schema.types import Dim, Symbol


def program_record(program: Program) -> Record:
    """Return the table of a program."""
    pool = PoolWriter(program.symbols)
    metadata = sorted(program.metadata.items())
    fields: dict[str, FieldValue] = {
        "provenance": _provenance_record(program.provenance),
        "files": [_file_record(file) for file in program.files],
        "blobs": blobs_record(program.blobs),
        "names": _names_record(program.names, pool),
        "states": [_state_record(state, pool) for state in program.states],
        "cursors": [_cursor_record(cursor, pool) for cursor in program.cursors],
        "methods": [_method_record(method, pool) for method in program.methods],
        "delegates": [_delegate_record(delegate) for delegate in program.delegates],
        "metadata_keys": [key for key, _ in metadata],
        "metadata_values": [text for _, text in metadata],
        "variants": [_variant_record(variant, pool) for variant in program.variants],
        **_bucket_fields(program.symbols),
    }
    return Record("Program", {**fields, "pool": pool.record()})


def _u32(numbers: Iterable[int]) -> Numbers:
    return np.array(list(numbers), np.uint32)


def _octets(raw: bytes) -> Numbers:
    return np.frombuffer(raw, np.uint8)


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


def _file_record(file: DataFile) -> Record:
    return Record("DataFile", {"name": file.name, "digest": _octets(file.digest)})


def blobs_record(blobs: Sequence[Blob]) -> Record:
    """Return the table of blobs, of a program or of a data file."""
    return Record(
        "Blobs",
        {
            "digests": _octets(b"".join(blob.digest for blob in blobs)),
            "nbytes": np.array([blob.nbytes for blob in blobs], np.uint64),
            "files": _u32(blob.file for blob in blobs),
            "offsets": np.array([blob.offset for blob in blobs], np.uint64),
            "aligns": _u32(blob.align for blob in blobs),
        },
    )


def _names_record(names: Sequence[NamedData], pool: PoolWriter) -> Record:
    return Record(
        "Names",
        {
            "names": [named.name for named in names],
            "blobs": _u32(named.blob for named in names),
            "types": _u32(pool.type(named.type) for named in names),
            "formats": _u32(pool.string(named.format) for named in names),
            "provenances": _u32(pool.string(named.provenance) for named in names),
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
    kind, capacity = _dim_fields(cursor.capacity, pool)
    rows_kind, rows = _dim_fields(cursor.rows, pool)
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


def _dim_fields(dim: Dim | None, pool: PoolWriter) -> tuple[int | None, int | None]:
    """Return the kind and value of a dim that may be missing."""
    return (None, None) if dim is None else pool.dim(dim)


def _advance_record(advance: Advance, pool: PoolWriter) -> Record:
    kind, tokens = _dim_fields(advance.tokens, pool)
    return Record(
        "Advance",
        {
            "cursor": advance.cursor,
            "tokens_kind": kind,
            "tokens": tokens,
            "lengths": advance.lengths,
        },
    )


def _method_record(method: Method, pool: PoolWriter) -> Record:
    return Record(
        "Method",
        {
            "name": method.name,
            "role": method.role,
            "graph": graph_record(method.graph, pool),
            "input_names": list(method.input_names),
            "input_tree": method.input_tree,
            "output_tree": method.output_tree,
            "reads": _u32(method.reads),
            "writes": _u32(method.writes),
            "advances": [_advance_record(one, pool) for one in method.advances],
            **update_fields(method.updates, pool),
            "blocks": [_block_record(block, pool) for block in method.blocks],
        },
    )


def _block_record(block: Block, pool: PoolWriter) -> Record:
    graph = graph_record(block.graph, pool)
    return Record("Block", {"graph": graph, **update_fields(block.updates, pool)})


def _delegate_record(delegate: Delegate) -> Record:
    return Record(
        "Delegate",
        {
            "backend": delegate.backend,
            "method": delegate.method,
            "block": delegate.block,
            "payload": _octets(delegate.payload),
            "names": _u32(delegate.names),
            "memory": int(delegate.memory),
            "workspace_nbytes": delegate.workspace_nbytes,
            "tail_nbytes": delegate.tail_nbytes,
        },
    )


def _variant_record(variant: Variant, pool: PoolWriter) -> Record:
    return Record(
        "Variant",
        {
            "recipe": variant.recipe,
            "recipe_text": variant.recipe_text,
            "methods": [_method_record(method, pool) for method in variant.methods],
            "delegates": [_delegate_record(one) for one in variant.delegates],
            **_bucket_fields(variant.symbols),
        },
    )


def _bucket_fields(symbols: Sequence[Symbol]) -> dict[str, FieldValue]:
    sizes = [size for symbol in symbols for size in symbol.sizes]
    return {
        "bucket_ends": _u32(accumulate(len(symbol.sizes) for symbol in symbols)),
        "bucket_sizes": np.array(sizes, np.int64),
    }


def read_program(table: TableReader, path: str) -> Program:
    """Return the program in a verified buffer, every id but a graph's names checked.

    Raises:
        BadProgram: an id leads nowhere, or vectors do not fit each other.
    """
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
        methods=_read_methods(table, graphs, pool, path),
        delegates=_read_delegates(table),
        metadata=dict(zip(keys, texts, strict=True)),
        variants=tuple(
            Variant(
                recipe=one.text("recipe"),
                recipe_text=one.text("recipe_text"),
                methods=_read_methods(one, graphs, pool, path),
                delegates=_read_delegates(one),
                symbols=_read_symbols(one, pool, path),
            )
            for one in table.children("variants")
        ),
    )


def _read_methods(
    table: TableReader, graphs: GraphReader, pool: Pool, path: str
) -> tuple[Method, ...]:
    children = table.children("methods")
    return tuple(_read_method(one, graphs, pool, path) for one in children)


def _read_symbols(table: TableReader, pool: Pool, path: str) -> tuple[Symbol, ...]:
    """Return the symbols of the pool, with the buckets that a table has for them."""
    ends, sizes = table.vector("bucket_ends"), table.integers("bucket_sizes")
    runs = cut(sizes, ends, len(pool.symbols), path, "buckets")
    pairs = zip(pool.symbols, runs, strict=True)
    return tuple(replace(symbol, sizes=run) for symbol, run in pairs)


def _read_delegates(table: TableReader) -> tuple[Delegate, ...]:
    return tuple(_read_delegate(one) for one in table.children("delegates"))


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
    """Return the blobs in a verified buffer.

    Raises:
        BadProgram: vectors do not fit each other.
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
        rows=_read_dim(table, "rows", pool, path, "cursor"),
        capacity=_read_dim(table, "capacity", pool, path, "cursor"),
    )


def _read_dim(
    table: TableReader, name: str, pool: Pool, path: str, where: str
) -> Dim | None:
    """Return the dim in the fields `name` and `name`_kind, None when it is absent."""
    kind, number = table.optional_number(f"{name}_kind"), table.optional_number(name)
    if (kind is None) != (number is None):
        raise BadProgram(path=path, where=where, what=f"{name} without its kind")
    if kind is None or number is None:
        return None
    return pool.read_dim(kind, number, path, where)


def _read_advance(table: TableReader, pool: Pool, path: str, where: str) -> Advance:
    return Advance(
        cursor=table.number("cursor"),
        tokens=_read_dim(table, "tokens", pool, path, where),
        lengths=table.optional_number("lengths"),
    )


def _read_method(
    table: TableReader, graphs: GraphReader, pool: Pool, path: str
) -> Method:
    name = table.text("name")
    where = f"method {name!r}"
    return Method(
        name=name,
        role=table.text("role"),
        graph=graphs.read(table.child("graph"), where),
        input_names=tuple(table.texts("input_names")),
        input_tree=table.text("input_tree"),
        output_tree=table.text("output_tree"),
        reads=tuple(table.integers("reads")),
        writes=tuple(table.integers("writes")),
        advances=tuple(
            _read_advance(one, pool, path, where) for one in table.children("advances")
        ),
        updates=read_updates(table, pool, path, where),
        blocks=tuple(
            _read_block(block, graphs, pool, path, f"{where}, block {number}")
            for number, block in enumerate(table.children("blocks"))
        ),
    )


def _read_block(
    table: TableReader, graphs: GraphReader, pool: Pool, path: str, where: str
) -> Block:
    return Block(
        graph=graphs.read(table.child("graph"), where),
        updates=read_updates(table, pool, path, where),
    )


def _read_delegate(table: TableReader) -> Delegate:
    return Delegate(
        backend=table.text("backend"),
        method=table.number("method"),
        block=table.number("block"),
        payload=table.octets("payload"),
        names=tuple(table.integers("names")),
        memory=MemoryKind(table.number("memory")),
        workspace_nbytes=table.number("workspace_nbytes"),
        tail_nbytes=table.number("tail_nbytes"),
    )
