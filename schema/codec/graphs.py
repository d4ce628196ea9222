"""Graphs as flat vectors: `graph_record` writes them, `GraphReader` reads them.

Graphs refer by id to the pool of their buffer. The reader checks all ids, then makes
values and instructions. Equal layers of a model have equal vectors. The reader makes
one object of all equal vectors, so that the verifier can recognize a layer that it has
checked before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, cast

import numpy as np

from kvc.schema.codec.pools import Pool, PoolWriter
from kvc.schema.codec.records import (
    Numbers,
    Record,
    TableReader,
    build,
    check_ids,
    check_lengths,
    cut,
)
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.graph import (
    Alias,
    Argument,
    Caller,
    Constant,
    CursorField,
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

# The vectors of a graph that encode its instructions, without their source locations.
_CODE: Final = (
    "instruction_ops",
    "argument_ends",
    "argument_kinds",
    "argument_values",
    "list_ends",
    "item_kinds",
    "item_values",
    "result_ends",
    "results",
)
_Code = tuple[list[str], list[tuple[Argument, ...]], list[tuple[int, ...]]]

Coded = tuple[int, int]  # kind, value


def encode_item(item: Item, pool: PoolWriter) -> Coded:
    """Return the kind number and the value number that encode an argument.

    Args:
        item: an argument that is not a list, or an item of a list.
        pool: the pool, which gets the text or number that the value number refers to.
    """
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
        case CursorSlot(cursor, field):
            return CURSOR, 4 * cursor + field


def graph_record(graph: Graph, pool: PoolWriter) -> Record:
    """Return the record of a graph; add its types, texts and numbers to `pool`."""
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


class GraphReader:
    """Reader of the graphs of one program; equal parts become one shared object."""

    def __init__(self, pool: Pool, path: str) -> None:
        self._pool, self._path = pool, path
        self._refs: list[Ref] = []
        self._values: dict[tuple[int, int, int], Value] = {}
        self._codes: dict[tuple[object, ...], _Code] = {}

    def read(self, table: TableReader, where: str) -> Graph:
        """Return the graph in a table, after all ids have been checked.

        Ids of names and states are not checked here, but by the semantic verifier.

        Raises:
            BadProgram: an id is out of range, or the lengths of vectors do not agree.
        """
        kinds, places = table.integers("value_storages"), table.integers("value_places")
        types = self._ids(table, "value_types", len(self._pool.types), where)
        check_lengths(self._path, where, kinds, places, types)
        coded, known = list(zip(kinds, types, places, strict=True)), self._values
        if new := [one for one in dict.fromkeys(coded) if one not in known]:
            known.update(zip(new, self._make_values(new, where), strict=True))
        values = tuple([known[one] for one in coded])
        count = len(values)
        return Graph(
            values=values,
            inputs=self._ids(table, "inputs", count, where),
            outputs=self._ids(table, "outputs", count, where),
            instructions=self._read_instructions(table, count, where),
            scratch_nbytes=table.number("scratch_nbytes"),
            peak_nbytes=table.number("peak_nbytes"),
        )

    def _ids(
        self, table: TableReader, name: str, count: int, where: str
    ) -> tuple[int, ...]:
        return tuple(check_ids(table.vector(name), count, self._path, where))

    def _make_values(
        self, coded: Sequence[tuple[int, int, int]], where: str
    ) -> list[Value]:
        """Return a value for each triple (storage kind, type id, storage number)."""
        pool, groups = self._pool, [list[tuple[int, int]]() for _ in range(6)]
        for kind, of, place in coded:
            groups[kind].append((of, place))
        columns = [[place for _, place in group] for group in groups]
        if any(columns[CALLER]):
            what = f"id {max(columns[CALLER])}, but there are 1"
            raise BadProgram(path=self._path, where=where, what=what)
        sizes = [pool.max_nbytes[of] for of, _ in groups[SCRATCH]]
        made: list[Iterator[Storage]] = [
            iter(build(Constant, columns[CONSTANT])),
            iter(build(StateSlot, columns[STATE])),
            iter(build(Scratch, columns[SCRATCH], sizes)),
            iter(build(Alias, columns[ALIAS])),
            repeat(Caller()),
            map(_cursor_slot, columns[CURSOR]),
        ]
        storages = [next(made[kind]) for kind, _, _ in coded]
        return build(Value, [pool.types[of] for _, of, _ in coded], storages)

    def _read_instructions(
        self, table: TableReader, values: int, where: str
    ) -> tuple[Instruction, ...]:
        key = (values, *map(table.octets, _CODE))
        code = self._codes.get(key)
        if code is None:
            vectors = {name: table.vector(name) for name in _CODE}
            code = self._codes[key] = self._read_code(vectors, values, where)
        strings = self._pool.strings
        texts = self._ids(table, "instruction_sources", len(strings), where)
        check_lengths(self._path, where, code[0], texts)
        return tuple(build(Instruction, *code, [strings[i] for i in texts]))

    def _read_code(
        self, vectors: Mapping[str, Numbers], values: int, where: str
    ) -> "_Code":
        """Return the operators, the arguments and the results of all instructions.

        Args:
            vectors: the vectors of the graph's table that hold instructions, by field
                name.
            values: the number of values of the graph.
            where: the part of the program that has the graph, for messages.

        Returns:
            Three lists with an entry per instruction: the name of its operator, its
            arguments, the ids of its results.
        """
        path, pool = self._path, self._pool
        known, more = len(self._refs), values - len(self._refs)
        if more > 0:
            self._refs += build(Ref, range(known, values))
        tables: list[Sequence[Argument]] = [
            (None,),
            self._refs[:values],
            pool.integers,
            pool.doubles,
            (False, True),
            pool.strings,
            tuple(DType),
            pool.affines,
            (),
        ]
        # An item of a list cannot be a list itself, so it gets no lists to refer to.
        items = self._read_items(
            vectors["item_kinds"], vectors["item_values"], tables, where
        )
        ends = vectors["list_ends"]
        tables[LIST] = cut(cast(list[Item], items), ends, len(ends), path, where)
        kinds, coded = vectors["argument_kinds"], vectors["argument_values"]
        flat = self._read_items(kinds, coded, tables, where)
        ops = check_ids(vectors["instruction_ops"], len(pool.ops), path, where)
        ids = check_ids(vectors["results"], values, path, where)
        return (
            [pool.ops[i] for i in ops],
            cut(flat, vectors["argument_ends"], len(ops), path, where),
            cut(ids, vectors["result_ends"], len(ops), path, where),
        )

    def _read_items(
        self,
        kinds: Numbers,
        values: Numbers,
        tables: Sequence[Sequence[Argument]],
        where: str,
    ) -> list[Argument]:
        check_lengths(self._path, where, kinds, values)
        coded = list(zip(kinds.tolist(), values.tolist(), strict=True))
        try:
            return [tables[kind][value] for kind, value in coded]
        except IndexError as error:
            kind, value = next(c for c in coded if c[1] >= len(tables[c[0]]))
            what = f"id {value}, but there are {len(tables[kind])}"
            raise BadProgram(path=self._path, where=where, what=what) from error


def _cursor_slot(place: int) -> CursorSlot:
    return CursorSlot(place // len(CursorField), CursorField(place % len(CursorField)))
