"""The tables of methods and delegates: a program's code, and the backends that run it.

`method_record` and `delegate_record` write these tables; `read_methods` and
`read_delegates` read them from a buffer that the structural verifier has accepted.
"""

from kvc.schema.codec.graphs import GraphReader, graph_record
from kvc.schema.codec.late_blocks import LateBlocks
from kvc.schema.codec.pools import (
    Pool,
    PoolWriter,
    dim_fields,
    read_dim,
    read_updates,
    update_fields,
)
from kvc.schema.codec.records import Record, TableReader, octets, u32
from kvc.schema.model import Advance, Block, Delegate, MemoryKind, Method


def method_record(method: Method, pool: PoolWriter) -> Record:
    """Return the record of a method; add its types, texts and numbers to `pool`."""
    return Record(
        "Method",
        {
            "name": method.name,
            "role": method.role,
            "graph": graph_record(method.graph, pool),
            "input_names": list(method.input_names),
            "input_tree": method.input_tree,
            "output_tree": method.output_tree,
            "reads": u32(method.reads),
            "writes": u32(method.writes),
            "advances": [_advance_record(one, pool) for one in method.advances],
            **update_fields(method.updates, pool),
            "blocks": [_block_record(block, pool) for block in method.blocks],
            "adapts": method.adapts,
        },
    )


def _block_record(block: Block, pool: PoolWriter) -> Record:
    graph = graph_record(block.graph, pool)
    return Record("Block", {"graph": graph, **update_fields(block.updates, pool)})


def _advance_record(advance: Advance, pool: PoolWriter) -> Record:
    kind, tokens = dim_fields(advance.tokens, pool)
    return Record(
        "Advance",
        {
            "cursor": advance.cursor,
            "tokens_kind": kind,
            "tokens": tokens,
            "lengths": advance.lengths,
        },
    )


def delegate_record(delegate: Delegate) -> Record:
    """Return the record of a delegate."""
    return Record(
        "Delegate",
        {
            "backend": delegate.backend,
            "method": delegate.method,
            "block": delegate.block,
            "payload": octets(delegate.payload),
            "names": u32(delegate.names),
            "memory": int(delegate.memory),
            "workspace_nbytes": delegate.workspace_nbytes,
            "tail_nbytes": delegate.tail_nbytes,
        },
    )


def read_methods(
    table: TableReader,
    graphs: GraphReader,
    pool: Pool,
    path: str,
    late: LateBlocks | None = None,
) -> tuple[Method, ...]:
    """Return the methods that the table of a program or of a variant contains.

    If `late` is given, their blocks are read when they are first needed.

    Raises:
        BadProgram: an id is out of range, or the lengths of vectors do not agree.
    """
    children = table.children("methods")
    return tuple(_read_method(one, graphs, pool, path, late) for one in children)


def _read_method(
    table: TableReader,
    graphs: GraphReader,
    pool: Pool,
    path: str,
    late: LateBlocks | None,
) -> Method:
    name = table.text("name")
    where = f"method {name!r}"
    blocks = table.children("blocks")

    def read() -> tuple[Block, ...]:
        return tuple(
            _read_block(block, graphs, pool, path, f"{where}, block {number}")
            for number, block in enumerate(blocks)
        )

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
            Advance(
                cursor=one.number("cursor"),
                tokens=read_dim(one, "tokens", pool, path, where),
                lengths=one.optional_number("lengths"),
            )
            for one in table.children("advances")
        ),
        updates=read_updates(table, pool, path, where),
        blocks=read() if late is None else late.blocks(len(blocks), read),
        adapts=table.optional_number("adapts"),
    )


def _read_block(
    table: TableReader, graphs: GraphReader, pool: Pool, path: str, where: str
) -> Block:
    return Block(
        graph=graphs.read(table.child("graph"), where),
        updates=read_updates(table, pool, path, where),
    )


def read_delegates(table: TableReader) -> tuple[Delegate, ...]:
    """Return the delegates that the table of a program or of a variant contains."""
    return tuple(
        Delegate(
            backend=one.text("backend"),
            method=one.number("method"),
            block=one.number("block"),
            payload=one.octets("payload"),
            names=tuple(one.integers("names")),
            memory=MemoryKind(one.number("memory")),
            workspace_nbytes=one.number("workspace_nbytes"),
            tail_nbytes=one.number("tail_nbytes"),
        )
        for one in table.children("delegates")
    )
