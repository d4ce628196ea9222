"""Programs built by hand, without the compiler, that are small enough to read whole.

`write_bundle` writes such a program as a bundle. Several tests of the runtime share the
programs in this module.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sample_programs import declared, save

from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Alias,
    Constant,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Value,
)
from kvc.schema.model import (
    Advance,
    Cursor,
    CursorKind,
    DataFile,
    Delegate,
    Method,
    NamedData,
    Program,
    ResetRule,
    State,
    StateKind,
    Update,
)
from kvc.schema.provenance import Provenance
from kvc.schema.types import Affine, Dim, Symbol, TensorType
from kvc.schema.verify.effects import effects

NOTHING: Mapping[str, np.ndarray] = {}
SEQ = Affine(0, (("seq", 1),))
Built = tuple[Program, dict[str, np.ndarray]]
F32, I64 = DType.FLOAT32, DType.INT64


def tree_of(names: Sequence[str]) -> str:
    arguments = [[name, i] for i, name in enumerate(names)]
    return json.dumps({"parameters": list(names), "arguments": arguments})


START, END, LENGTHS, PLACES = (CursorSlot(0, field) for field in CursorField)


def adds(tokens: Dim, lengths: int | None = None) -> tuple[Advance, ...]:
    """Return the `advances` of a method that moves the position by `tokens`."""
    return (Advance(0, tokens, lengths),)


def method(
    name: str, graph: Graph, input_names: Sequence[str], **fields: object
) -> Method:
    """Return a method whose arguments are tensors, and whose result is one or a tuple.

    Unless `fields` says otherwise, the method does not advance the position, and all
    its writes to states are in place.
    """
    count = len(graph.outputs)
    output = json.dumps(0 if count == 1 else {"tuple": list(range(count))})
    names, tree = tuple(input_names), tree_of(input_names)
    updates = tuple(Update(index, "", ()) for index in effects(graph).updates)
    plain = Method(name, "", graph, names, tree, output, (), (), (), updates)
    return declared(replace(plain, **fields))


def program(
    methods: Sequence[Method],
    arrays: Mapping[str, np.ndarray] = NOTHING,
    *,
    symbols: Sequence[Symbol] = (),
    states: Sequence[State] = (),
    cursors: Sequence[Cursor] = (),
    delegates: Sequence[Delegate] = (),
) -> Built:
    """Return a program without blobs, and the arrays of its named data, by name.

    A writer adds the blobs.
    """
    types = [TensorType(DType.from_numpy(x.dtype), x.shape) for x in arrays.values()]
    names = tuple(
        NamedData(name, i, kind, "plain", "test")
        for i, (name, kind) in enumerate(zip(arrays, types, strict=True))
    )
    made = Program(
        provenance=Provenance("0", "0", "none", "", ""),
        symbols=tuple(symbols),
        files=(DataFile("", b""),),
        blobs=(),
        names=names,
        states=tuple(states),
        cursors=tuple(cursors),
        methods=tuple(methods),
        delegates=tuple(delegates),
        metadata={},
    )
    return made, dict(arrays)


def write_bundle(path: Path, built: Built, **options: bool) -> Path:
    made, arrays = built
    save(path, made, [array.tobytes() for array in arrays.values()], **options)
    return path


def affine_program() -> Built:
    """Return `forward(x) = relu(x * scale + x)`, x float32 [seq, 4], seq in 1..8."""
    x, scale = TensorType(F32, (SEQ, 4)), TensorType(F32, (4,))
    graph = Graph(
        values=(
            Value(x, Scratch(0, 128)),
            Value(scale, Constant(0)),
            Value(x, Scratch(128, 128)),
            Value(x, Scratch(256, 128)),
            Value(x, Scratch(128, 128)),
        ),
        inputs=(0,),
        outputs=(4,),
        instructions=(
            Instruction("aten::mul.Tensor", (Ref(0), Ref(1)), (2,), "model:1"),
            Instruction("aten::add.Tensor", (Ref(2), Ref(0), 1), (3,), "model:2"),
            Instruction("aten::relu", (Ref(3),), (4,), "model:3"),
        ),
        scratch_nbytes=384,
        peak_nbytes=256,
    )
    arrays = {"scale": np.array([1, 2, 3, -4], np.float32)}
    return program(
        [method("forward", graph, ["x"])], arrays, symbols=[Symbol("seq", 1, 8)]
    )


CACHE_TYPE = TensorType(F32, (1, 1, 8, 2))
POSITION_TYPE = TensorType(I64, (1,))


def cache_states(reset: ResetRule = ResetRule.INITIAL) -> tuple[State, State]:
    """Return two states: a cache float32 [1, 1, 8, 2] and its position int64 [1]."""
    linear, counter, order = StateKind.LINEAR, StateKind.COUNTER, (0, 1, 2, 3)
    return (
        State("cache", CACHE_TYPE, linear, 2, order, None, reset, 0),
        State("position", POSITION_TYPE, counter, None, (0,), None, reset, 0),
    )


def append_graph(seq: int | Affine) -> Graph:
    """Return the code that writes rows [1, 1, seq, 2] and returns the whole cache.

    The cache is updated in place; the position is computed in scratch memory and
    copied.
    """
    rows = TensorType(F32, (1, 1, seq, 2))
    nbytes = rows.max_nbytes({"seq": Symbol("seq", 1, 8)})
    written = Ref(1), Ref(0), Ref(6), 2, "linear", None, 0
    return Graph(
        values=(
            Value(rows, Scratch(0, nbytes)),
            Value(CACHE_TYPE, StateSlot(0)),
            Value(POSITION_TYPE, StateSlot(1)),
            Value(CACHE_TYPE, Alias(1)),
            Value(POSITION_TYPE, Scratch(64, 8)),
            Value(POSITION_TYPE, Alias(2)),
            Value(POSITION_TYPE, START),
        ),
        inputs=(0,),
        outputs=(3,),
        instructions=(
            Instruction("kvc::cache_update", written, (3,), "model:10"),
            Instruction("aten::add.Scalar", (Ref(2), seq, 1), (4,), "model:11"),
            Instruction("aten::copy", (Ref(2), Ref(4)), (5,), "model:12"),
        ),
        scratch_nbytes=128,
        peak_nbytes=72,
    )


def look_graph() -> Graph:
    return Graph(
        values=(Value(CACHE_TYPE, StateSlot(0)), Value(CACHE_TYPE, Scratch(0, 64))),
        inputs=(),
        outputs=(1,),
        instructions=(
            Instruction("aten::add.Scalar", (Ref(0), 1, 1), (1,), "model:20"),
        ),
        scratch_nbytes=64,
        peak_nbytes=64,
    )


def cache_program() -> Built:
    """Return a program with a cache of 8 rows.

    `prefill(rows)` and `decode(rows)` write the cache; `look()` returns the cache plus
    1.
    """
    touched = {"reads": (0, 1), "writes": (0, 1)}
    return program(
        [
            *(
                method(name, append_graph(n), ["rows"], advances=adds(n), **touched)
                for name, n in (("prefill", SEQ), ("decode", 1))
            ),
            method("look", look_graph(), [], reads=(0,)),
        ],
        symbols=[Symbol("seq", 1, 8)],
        states=cache_states(),
        cursors=[Cursor("position", CursorKind.STATE, 1, 1, 8)],
    )


def elementwise_graph(op: str, dtype: DType, dims: tuple[int, ...]) -> Graph:
    kind = TensorType(dtype, dims)
    nbytes = kind.nbytes({})
    return Graph(
        values=(Value(kind, Scratch(0, nbytes)), Value(kind, Scratch(64, nbytes))),
        inputs=(0,),
        outputs=(1,),
        instructions=(Instruction(op, (Ref(0),), (1,), ""),),
        scratch_nbytes=64 + nbytes,
        peak_nbytes=64 + nbytes,
    )


def failing_program() -> Built:
    """Return a program with `pick(index) = -table[index]`; the table has 3 numbers.

    Tests pass an index that is out of range.
    """
    table, index = TensorType(F32, (3,)), TensorType(I64, (1,))
    chosen = Ref(2), 0, Ref(0)
    graph = Graph(
        values=(
            Value(index, Scratch(0, 8)),
            Value(table, Constant(0)),
            Value(table, Scratch(64, 12)),
            Value(TensorType(F32, (1,)), Scratch(128, 4)),
        ),
        inputs=(0,),
        outputs=(3,),
        instructions=(
            Instruction("aten::neg", (Ref(1),), (2,), "model:30"),
            Instruction("aten::index_select", chosen, (3,), "model:31 (table)"),
        ),
        scratch_nbytes=192,
        peak_nbytes=24,
    )
    arrays = {"table": np.array([0, 1, 2], np.float32)}
    return program([method("pick", graph, ["index"])], arrays)


def copied_update_program() -> Built:
    """Return a program with `peek(rows)`, which leaves its cache unchanged.

    It returns a copy of the cache, whose content is 0 to 15, with `rows` written at 0.
    """
    rows = TensorType(F32, (1, 1, 1, 2))
    written = Ref(1), Ref(0), None, 2, "linear", None, 0
    graph = Graph(
        values=(
            Value(rows, Scratch(0, 8)),
            Value(CACHE_TYPE, StateSlot(0)),
            Value(CACHE_TYPE, Scratch(64, 64)),
        ),
        inputs=(0,),
        outputs=(2,),
        instructions=(Instruction("kvc::cache_update", written, (2,)),),
        scratch_nbytes=128,
        peak_nbytes=72,
    )
    cache, _ = cache_states()
    arrays = {"start": np.arange(16, dtype=np.float32).reshape(CACHE_TYPE.dims)}
    return program(
        [method("peek", graph, ["rows"], reads=(0,))],
        arrays,
        states=(replace(cache, initial=0, cursor=None),),
    )


def adding_graph(kind: TensorType, nbytes: int) -> Graph:
    """Return the code that adds its input to state 0.

    Args:
        kind: the type of the input and the state.
        nbytes: the greatest size of a value of this type, in bytes.
    """
    return Graph(
        values=(
            Value(kind, Scratch(0, nbytes)),
            Value(kind, StateSlot(0)),
            Value(kind, Scratch(nbytes, nbytes)),
            Value(kind, Alias(1)),
        ),
        inputs=(0,),
        outputs=(3,),
        instructions=(
            Instruction("aten::add.Tensor", (Ref(1), Ref(0), 1), (2,)),
            Instruction("aten::copy", (Ref(1), Ref(2)), (3,)),
        ),
        scratch_nbytes=2 * nbytes,
        peak_nbytes=2 * nbytes,
    )


def sized_program() -> Built:
    """Return a program whose `add(x)` adds x float32 [batch, capacity] to a state."""
    batch, capacity = Affine(0, (("batch", 1),)), Affine(0, (("capacity", 1),))
    kind = TensorType(F32, (batch, capacity))
    graph = adding_graph(kind, 4 * 64 * 4)
    plain, initial = StateKind.PLAIN, ResetRule.INITIAL
    state = State("total", kind, plain, None, (0, 1), None, initial, None)
    return program(
        [method("add", graph, ["x"], reads=(0,), writes=(0,))],
        symbols=[Symbol("batch", 1, 4), Symbol("capacity", 1, 64)],
        states=[state],
    )
