"""A small valid program, and a large one of many equal layers, made by hand.

`sample_program()` has what a decoder has: a symbol, weights, an initial value, two
states, a prefill and a decode that write the cache in place, views, a list argument
and a delegate. `SAMPLE_BLOBS` are the bytes of its blobs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TypeVar

from kvc.schema.accesses import with_accesses
from kvc.schema.container import Content, save_bundle
from kvc.schema.digests import blob_digest
from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Alias,
    Argument,
    Caller,
    Constant,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Storage,
    Value,
)
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
    Update,
)
from kvc.schema.provenance import Provenance
from kvc.schema.trees import describe_call, flatten
from kvc.schema.types import Symbol, TensorType, affine
from kvc.schema.verify.effects import effects

Item = TypeVar("Item")
F32, I64, BOOL = DType.FLOAT32, DType.INT64, DType.BOOL
SEQ = affine(0, {"seq": 1})
SYMBOLS = (Symbol("seq", 1, 8),)
SAMPLE_BLOBS = (bytes(range(256)), b"\0\0\x80\x3f" * 8, b"\1" + b"\0" * 7)


def declared(method: Method) -> Method:
    """Return the method with the reads and writes of each update filled in.

    The same is done for its blocks.
    """
    blocks = dict(enumerate(method.blocks))
    for number in reversed(blocks):
        graph, updates = blocks[number].graph, blocks[number].updates
        blocks[number] = Block(graph, with_accesses(graph, updates, blocks))
    updates = with_accesses(method.graph, method.updates, blocks)
    return replace(method, updates=updates, blocks=tuple(blocks.values()))


def in_place(graph: Graph, blocks: Sequence[Block] = ()) -> tuple[Update, ...]:
    """Return a verdict for each write over a state: in place, without a copy."""
    plain = [Update(index, "", ()) for index in effects(graph).updates]
    return with_accesses(graph, plain, blocks)


def changed(items: Sequence[Item], index: int, **fields: object) -> tuple[Item, ...]:
    made = list(items)
    made[index] = replace(made[index], **fields)
    return tuple(made)


def state(
    name: str,
    kind: TensorType,
    how: StateKind,
    axis: int | None = None,
    cursor: int | None = None,
    layout: tuple[int, ...] | None = None,
    initial: int | None = None,
    reset: ResetRule = ResetRule.INITIAL,
) -> State:
    order = layout or tuple(range(len(kind.dims)))
    return State(name, kind, how, axis, order, initial, reset, cursor)


def called(name: str, graph: Graph, given: Sequence[str], **fields: object) -> Method:
    """Return a method that takes tensors by name and returns one tensor or a tuple.

    Its writes copy nothing.
    """
    tree, _, names = describe_call(given, (object(),) * len(given), {})
    made = [object() for _ in graph.outputs]
    output = flatten(made[0] if len(made) == 1 else tuple(made))[1]
    plain = Method(name, "", graph, names, tree, output, (), (), (), ())
    return replace(plain, **{"updates": in_place(graph), **fields})


class GraphBuilder:
    """Collects values and instructions of a graph; scratch memory is never reused."""

    def __init__(self, symbols: Mapping[str, Symbol] | None = None) -> None:
        self.symbols = symbols or {symbol.name: symbol for symbol in SYMBOLS}
        self.values: list[Value] = []
        self.instructions: list[Instruction] = []
        self.top = 0

    def value(self, kind: TensorType, storage: Storage) -> int:
        self.values.append(Value(kind, storage))
        return len(self.values) - 1

    def scratch(self, kind: TensorType) -> int:
        nbytes = kind.max_nbytes(self.symbols)
        offset, self.top = self.top, self.top + -(-nbytes // 64) * 64
        return self.value(kind, Scratch(offset, nbytes))

    def step(
        self, op: str, arguments: Sequence[Argument], *results: int, source: str = ""
    ) -> int:
        made = Instruction(op, tuple(arguments), results, source)
        self.instructions.append(made)
        return results[0]

    def graph(self, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
        values, steps = tuple(self.values), tuple(self.instructions)
        return Graph(values, tuple(inputs), tuple(outputs), steps, self.top, 0)


def method(name: str, seq: "int | object") -> Method:
    """Return a method that writes `seq` rows of a linear layer into the cache.

    It also advances the position. The layer's input is x float32 [1, seq, 8].
    """
    b = GraphBuilder()
    rows = TensorType(F32, (1, seq, 8))  # type: ignore[arg-type]
    x = b.scratch(rows)
    weight = b.value(TensorType(F32, (8, 8)), Constant(0))
    bias = b.value(TensorType(F32, (8,)), Constant(1))
    cache = b.value(TensorType(F32, (1, 16, 8)), StateSlot(0))
    position = b.value(TensorType(I64, (1,)), StateSlot(1))
    start = 13 if name == "prefill" else 12  # the last value
    one, number = TensorType(F32, (1,)), TensorType(I64, (1,))
    operands = Ref(x), Ref(weight), Ref(bias)
    source = "model:12 (layers.0)"
    y = b.step("aten::linear", operands, b.scratch(rows), source=source)
    new = b.step(
        "kvc::cache_update",
        (Ref(cache), Ref(y), Ref(start), 1, "linear", None, 0),
        b.value(TensorType(F32, (1, 16, 8)), Alias(cache)),
        source="model:13 (layers.0)",
    )
    flat = b.value(TensorType(F32, (1, 128)), Alias(new))
    b.step("aten::view", (Ref(new), (1, -1)), flat)
    total = b.step("aten::sum.dim_IntList", (Ref(flat), (1,), False), b.scratch(one))
    scaled = b.step("aten::mul.Scalar", (Ref(total), 0.5), b.scratch(one))
    moved = b.step("aten::add.Scalar", (Ref(position), seq, 1), b.scratch(number))  # type: ignore[arg-type]
    b.step("aten::copy", (Ref(position), Ref(moved)), b.value(number, Alias(position)))
    out = y
    if name == "prefill":
        called_with = (0, (Ref(y),), (None,))
        out = b.step(
            "kvc::delegate", called_with, b.scratch(rows), source="model:14 (head)"
        )
    assert start == b.value(TensorType(I64, (1,)), CursorSlot(0, CursorField.START))
    graph = b.graph((x,), (scaled, out))
    write, advance = effects(graph).updates
    beside = Update(advance, "it is computed beside the old value", (advance,))
    used = {"reads": (0, 1), "writes": (0, 1), "advances": (Advance(0, seq),)}
    used["updates"] = (Update(write, "", ()), beside)
    used["blocks"] = (Block(partition_graph(), ()),) if name == "prefill" else ()
    return declared(called(name, graph, ("x",), **used))


def partition_graph() -> Graph:
    """Return the code of the delegate, which adds the bias to its input."""
    b = GraphBuilder()
    rows = TensorType(F32, (1, SEQ, 8))
    x = b.value(rows, Caller())
    bias = b.value(TensorType(F32, (8,)), Constant(1))
    out = b.step("aten::add.Tensor", (Ref(x), Ref(bias), 1), b.scratch(rows))
    return b.graph((x,), (out,))


def sample_names() -> tuple[NamedData, ...]:
    """Return the names of the sample's three blobs."""
    return (
        NamedData("weight", 0, TensorType(F32, (8, 8)), "plain", "layers.0.weight"),
        NamedData("bias", 1, TensorType(F32, (8,)), "plain", "layers.0.bias"),
        NamedData("start", 2, TensorType(I64, (1,)), "plain", "position"),
    )


def sample_program() -> Program:
    """Return the small program; the offsets of its blobs are made up."""
    cache = TensorType(F32, (1, 16, 8))
    return Program(
        provenance=Provenance("0.1.0", "2.13.0", "portable", "[recipe]\n", "ab" * 32),
        symbols=SYMBOLS,
        files=(DataFile("", b""),),
        blobs=tuple(
            Blob(blob_digest(raw), len(raw), 0, 128 + 256 * i, 64)
            for i, raw in enumerate(SAMPLE_BLOBS)
        ),
        names=sample_names(),
        states=(
            state("cache", cache, StateKind.LINEAR, 1, 0),
            state(
                "position", TensorType(I64, (1,)), StateKind.COUNTER, None, 0, None, 2
            ),
        ),
        cursors=(Cursor("position", CursorKind.STATE, 1, 1, 16),),
        methods=(method("prefill", SEQ), method("decode", 1)),
        delegates=(Delegate("sample", 0, 0, b"", (1,), MemoryKind.PLANNED, 256, 0),),
        metadata={"stop": "[2]", "name": '"sample"'},
    )


def with_graph(program: Program, index: int, graph: Graph) -> Program:
    return replace(program, methods=changed(program.methods, index, graph=graph))


def write_sample(path: str | PathLike[str], program: Program | None = None) -> Program:
    return save(path, program or sample_program(), SAMPLE_BLOBS)


def save(
    path: str | PathLike[str], program: Program, blobs: Sequence[bytes], **options: bool
) -> Program:
    """Write a program with these blobs, and return the program as it was written."""

    def content(name: int) -> Content:
        raw = blobs[program.names[name].blob]
        return Content(len(raw), lambda: iter([memoryview(raw)]), name)

    return save_bundle(path, program, content, **options).program


def _layer(b: GraphBuilder, x: int, layer: int, position: int) -> int:
    """Add fifty instructions: norm, linear, cache write, attention, elementwise ops."""
    rows, heads = TensorType(F32, (1, SEQ, 8)), TensorType(F32, (1, 2, SEQ, 4))
    split, cache_type = TensorType(F32, (1, SEQ, 2, 4)), TensorType(F32, (1, 2, 16, 4))
    weight = b.value(TensorType(F32, (8, 8)), Constant(0))
    cache = b.value(cache_type, StateSlot(layer))
    given = Ref(x), (8,), None, 1e-5
    norm = b.step("aten::rms_norm", given, b.scratch(rows), source=f"m:{layer}")
    y = b.step("aten::linear", (Ref(norm), Ref(weight), None), b.scratch(rows))
    four = b.step("aten::view", (Ref(y), (1, SEQ, 2, 4)), b.value(split, Alias(y)))
    q = b.step("aten::transpose.int", (Ref(four), 1, 2), b.value(heads, Alias(four)))
    written = Ref(cache), Ref(q), Ref(position), 2, "linear", None, 0
    new = b.value(cache_type, Alias(cache))
    b.step("kvc::cache_update", written, new)
    length = b.step(
        "aten::add.Scalar", (Ref(position), SEQ, 1), b.scratch(TensorType(I64, (1,)))
    )
    attended = Ref(q), Ref(new), Ref(new), Ref(length), None, True
    attended += (*[None] * 6, "linear", None, None, None, 0)
    out = b.step("kvc::attention", attended, b.scratch(heads))
    back = b.step("aten::transpose.int", (Ref(out), 1, 2), b.value(split, Alias(out)))
    flat = b.step("aten::reshape", (Ref(back), (1, SEQ, 8)), b.scratch(rows))
    for i in range(20):
        weight = b.value(TensorType(F32, (8, 8)), Constant(0))
        given, source = (Ref(flat), Ref(weight), None), f"m:{i} (layers.{layer})"
        up = b.step("aten::linear", given, b.scratch(rows), source=source)
        flat = b.step("aten::mul.Tensor", (Ref(up), Ref(flat)), b.scratch(rows))
    return b.step("aten::add.Tensor", (Ref(x), Ref(flat), 1), b.scratch(rows))


def layered_program(instructions: int) -> Program:
    layers = instructions // 100
    cache = TensorType(F32, (1, 2, 16, 4))
    states = [state(f"layers.{i}", cache, StateKind.LINEAR, 2) for i in range(layers)]
    methods = []
    for name in ("prefill", "decode"):
        b = GraphBuilder()
        first = x = b.scratch(TensorType(F32, (1, SEQ, 8)))
        position = b.scratch(TensorType(I64, (1,)))
        for layer in range(layers):
            x = _layer(b, x, layer, position)
        graph, used = b.graph((first, position), (x,)), tuple(range(layers))
        given = "x", "position"
        methods.append(called(name, graph, given, role=name, reads=used, writes=used))
    sample = sample_program()
    return replace(
        sample,
        blobs=sample.blobs[:1],
        names=sample.names[:1],
        states=tuple(states),
        cursors=(),
        methods=tuple(methods),
        delegates=(),
    )


def tiny_program() -> Program:
    b = GraphBuilder()
    kind = TensorType(F32, (8,))
    x, bias = b.scratch(kind), b.value(kind, Constant(0))
    out = b.step("aten::add.Tensor", (Ref(x), Ref(bias), 1), b.scratch(kind))
    held = b.value(kind, StateSlot(0))
    b.step("aten::copy", (Ref(held), Ref(out)), b.value(kind, Alias(held)))
    graph = b.graph((x,), (out,))
    return Program(
        provenance=Provenance("", "", "", "", ""),
        symbols=(),
        files=(DataFile("", b""),),
        blobs=(Blob(blob_digest(SAMPLE_BLOBS[1]), 32, 0, 128, 64),),
        names=(NamedData("bias", 0, kind, "plain", ""),),
        states=(state("s", kind, StateKind.PLAIN),),
        cursors=(),
        methods=(called("f", graph, ("x",), writes=(0,)),),
        delegates=(),
        metadata={},
    )


def write_tiny(path: str | PathLike[str]) -> Program:
    return save(path, tiny_program(), SAMPLE_BLOBS[1:2])
