"""Graphs as flat vectors: `graph_record` writes one, `read_graph` reads one.

Everything that a graph refers to is in the pool of its buffer. Reading checks all ids
at once with numpy, then makes the values and instructions, sharing equal parts.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import cast

import numpy as np

from kvc.schema.codec.bulk import build
from kvc.schema.codec.checks import Numbers, check_ids, check_lengths, cut
from kvc.schema.codec.pools import Pool, PoolWriter
from kvc.schema.codec.records import Record, TableReader
from kvc.schema.dtypes import DType
from kvc.schema.model import (
    Alias,
    Argument,
    Caller,
    Constant,
    CursorPart,
    CursorSlot,
    Graph,
    Instruction,
    Item,
    Ref,
    Scratch,
    StateSlot,
    Storage,
    Value,
)
from kvc.schema.types import Affine

CONSTANT, STATE, SCRATCH, ALIAS, CALLER, CURSOR = range(6)
NONE, VALUE, INT, FLOAT, BOOL, TEXT, DTYPE, AFFINE, LIST = range(9)

Coded = tuple[int, int]  # kind, value


def encode_item(item: Item, pool: PoolWriter) -> Coded:
    """Return the kind and value of an argument that is not a list."""
    match item:
        case None:
            return NONE, 0
        case Ref(value):
            return VALUE, value
        case bool():
            return BOOL, int(item)
        case DType():
            return DTYPE, int(item)
        case int():
            return INT, pool.integer(item)
        case float():
            return FLOAT, pool.double(item)
        case str():
            return TEXT, pool.string(item)
        case Affine():
            return AFFINE, pool.affine(item)


def _place(storage: Storage) -> Coded:
    match storage:
        case Constant(name):
            return CONSTANT, name
        case StateSlot(state):
            return STATE, state
        case Scratch(offset):
            return SCRATCH, offset
        case Alias(base):
            return ALIAS, base
        case Caller():
            return CALLER, 0
        case CursorSlot(cursor, part):
            return CURSOR, 4 * cursor + part


def graph_record(graph: Graph, pool: PoolWriter) -> Record:
    """Return the table of a graph; what it refers to goes to `pool`."""
    places = [_place(value.storage) for value in graph.values]
    steps = graph.instructions
    return Record(
        "Graph",
        {
            "value_types": _u32(pool.type(value.type) for value in graph.values),
            "value_storages": np.array([kind for kind, _ in places], np.uint8),
            "value_places": np.array([place for _, place in places], np.uint64),
            "inputs": _u32(graph.inputs),
            "outputs": _u32(graph.outputs),
            "instruction_ops": _u32(pool.op(step.op) for step in steps),
            "instruction_sources": _u32(pool.string(step.source) for step in steps),
            **_argument_fields(steps, pool),
            "result_ends": _ends(step.results for step in steps),
            "results": _u32(result for step in steps for result in step.results),
            "scratch_nbytes": graph.scratch_nbytes,
            "peak_nbytes": graph.peak_nbytes,
        },
    )


def _argument_fields(
    steps: Sequence[Instruction], pool: PoolWriter
) -> dict[str, Numbers]:
    lists: dict[tuple[Coded, ...], int] = {}
    coded: list[Coded] = []
    for step in steps:
        for argument in step.arguments:
            if isinstance(argument, tuple):
                items = tuple(encode_item(item, pool) for item in argument)
                coded.append((LIST, lists.setdefault(items, len(lists))))
            else:
                coded.append(encode_item(argument, pool))
    flat = [item for items in lists for item in items]
    return {
        "argument_ends": _ends(step.arguments for step in steps),
        "argument_kinds": np.array([kind for kind, _ in coded], np.uint8),
        "argument_values": np.array([value for _, value in coded], np.uint32),
        "list_ends": _ends(lists),
        "item_kinds": np.array([kind for kind, _ in flat], np.uint8),
        "item_values": np.array([value for _, value in flat], np.uint32),
    }


def _u32(numbers: Iterable[int]) -> Numbers:
    return np.array(list(numbers), np.uint32)


def _ends(runs: Iterable[Sequence[object]]) -> Numbers:
    return np.cumsum([len(run) for run in runs], dtype=np.uint32)


def read_graph(table: TableReader, pool: Pool, path: str, where: str) -> Graph:
    """Return a graph, every id in it checked against the pool and its own tables.

    Ids of names and states are left to the semantic verifier.

    Raises:
        BadProgram: an id leads nowhere, or vectors do not fit each other.
    """
    values = _read_values(table, pool, path, where)
    count = len(values)
    return Graph(
        values=values,
        inputs=tuple(check_ids(table.vector("inputs"), count, path, where)),
        outputs=tuple(check_ids(table.vector("outputs"), count, path, where)),
        instructions=_read_instructions(table, pool, count, path, where),
        scratch_nbytes=table.number("scratch_nbytes"),
        peak_nbytes=table.number("peak_nbytes"),
    )


def _read_values(
    table: TableReader, pool: Pool, path: str, where: str
) -> tuple[Value, ...]:
    kinds, places = table.vector("value_storages"), table.vector("value_places")
    ids = check_ids(table.vector("value_types"), len(pool.types), path, where)
    check_lengths(path, where, kinds, places, ids)
    check_ids(places[kinds == CALLER], 1, path, where)
    sizes = [pool.max_nbytes[i] for i in np.asarray(ids)[kinds == SCRATCH].tolist()]
    made = (
        iter(build(Constant, places[kinds == CONSTANT].tolist())),
        iter(build(StateSlot, places[kinds == STATE].tolist())),
        iter(build(Scratch, places[kinds == SCRATCH].tolist(), sizes)),
        iter(build(Alias, places[kinds == ALIAS].tolist())),
        repeat(Caller()),
        iter([_cursor_slot(place) for place in places[kinds == CURSOR].tolist()]),
    )
    storages = [next(made[kind]) for kind in kinds.tolist()]
    return tuple(build(Value, [pool.types[i] for i in ids], storages))


def _cursor_slot(place: int) -> CursorSlot:
    return CursorSlot(place // len(CursorPart), CursorPart(place % len(CursorPart)))


def _read_instructions(
    table: TableReader, pool: Pool, values: int, path: str, where: str
) -> tuple[Instruction, ...]:
    ops = check_ids(table.vector("instruction_ops"), len(pool.ops), path, where)
    sources = table.vector("instruction_sources")
    texts = check_ids(sources, len(pool.strings), path, where)
    check_lengths(path, where, ops, texts)
    arguments = cut(
        _read_arguments(table, pool, values, path, where),
        table.vector("argument_ends"),
        len(ops),
        path,
        where,
    )
    ids = check_ids(table.vector("results"), values, path, where)
    results = cut(ids, table.vector("result_ends"), len(ops), path, where)
    return tuple(
        build(
            Instruction,
            [pool.ops[i] for i in ops],
            arguments,
            results,
            [pool.strings[i] for i in texts],
        )
    )


def _read_arguments(
    table: TableReader, pool: Pool, values: int, path: str, where: str
) -> list[Argument]:
    reader = _ItemReader(pool, values, path, where)
    kinds, items = table.vector("item_kinds"), table.vector("item_values")
    ends = table.vector("list_ends")
    # Without lists to refer to, no item can be a list.
    flat = cast(list[Item], reader.read(kinds, items))
    lists = cut(flat, ends, len(ends), path, where)
    kinds, coded = table.vector("argument_kinds"), table.vector("argument_values")
    return reader.read(kinds, coded, lists)


class _ItemReader:
    """Makes arguments of kinds and values; equal ones are one object."""

    def __init__(self, pool: Pool, values: int, path: str, where: str) -> None:
        self.path, self.where = path, where
        self.refs = build(Ref, range(values))
        self.tables: dict[int, Sequence[Argument]] = {
            NONE: (None,),
            VALUE: self.refs,
            INT: pool.integers,
            FLOAT: pool.doubles,
            BOOL: (False, True),
            TEXT: pool.strings,
            DTYPE: tuple(DType),
            AFFINE: pool.affines,
        }

    def read(
        self, kinds: Numbers, values: Numbers, lists: "Sequence[tuple[Item, ...]]" = ()
    ) -> list[Argument]:
        check_lengths(self.path, self.where, kinds, values)
        tables = {**self.tables, LIST: lists}
        for kind, table in tables.items():
            check_ids(values[kinds == kind], len(table), self.path, self.where)
        return [
            tables[kind][value]
            for kind, value in zip(kinds.tolist(), values.tolist(), strict=True)
        ]
