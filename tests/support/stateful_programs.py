"""Programs made by hand with states, and arrays of callers that are changed in place.

Each is small enough to be read as a whole. Among them are caches at a position, memory
that grows, positions of every kind, states that cannot go back, and inputs that are
changed in place.
"""

from collections.abc import Sequence

import numpy as np
from hand_built import F32, I64, PLACES, SEQ, START, Built, adds, method, program
from sample_programs import GraphBuilder, state

from kvc.schema.dtypes import DType
from kvc.schema.graph import Alias, Argument, Caller, Instruction, Ref, StateSlot
from kvc.schema.model import Cursor, CursorKind, Method, State, StateKind
from kvc.schema.types import Dim, Symbol, TensorType, affine
from kvc.schema.verify.effects import effects

BATCH, CAPACITY = affine(0, {"batch": 1}), affine(0, {"capacity": 1})
PAST, LONGER = affine(0, {"past": 1}), affine(0, {"past": 1, "seq": 1})
SYMBOLS = {
    "batch": Symbol("batch", 1, 4),
    "capacity": Symbol("capacity", 1, 32768),
    "past": Symbol("past", 0, 32768),
    "seq": Symbol("seq", 1, 64),
}


class Builder(GraphBuilder):
    """A builder of methods that tests call; each step gets a source line of its own."""

    def __init__(self, symbols: dict[str, Symbol] = SYMBOLS) -> None:
        super().__init__(symbols)

    def step(
        self, op: str, arguments: Sequence[Argument], *results: int, source: str = ""
    ) -> int:
        source = source or f"model:{len(self.instructions)}"
        return super().step(op, arguments, *results, source=source)

    def check(self, *arguments: Argument) -> None:
        self.instructions.append(Instruction("kvc::check_index", arguments, (), "c:1"))

    def over(self, op: str, base: int, *others: Argument, kind: object = None) -> int:
        """Add an op whose result overwrites the memory of its operand 0."""
        declared = kind or self.values[base].type
        result = self.value(declared, Alias(base))
        return self.step(op, (Ref(base), *others), result)

    def method(self, name, inputs, outputs, **fields) -> Method:
        graph = self.graph(inputs.values(), outputs)
        found = effects(graph)
        return method(
            name, graph, tuple(inputs), reads=found.reads, writes=found.writes, **fields
        )


def used_symbols(*names: str) -> tuple[Symbol, ...]:
    return tuple(SYMBOLS[name] for name in names)


ONE = TensorType(I64, (1,))


def counted(position: TensorType) -> tuple[State, Cursor]:
    """Return a counter state, and the cursor that it is; it must be state 0."""
    counter = state("position", position, StateKind.COUNTER, cursor=0)
    (rows,) = position.dims
    return counter, Cursor("position", CursorKind.STATE, 0, rows, CAPACITY)


def rows_type(
    length: Dim, batch: Dim = 1, heads: int = 3, width: int = 64
) -> TensorType:
    """Return the type float32 [batch, heads, length, width]."""
    return TensorType(F32, (batch, heads, length, width))


def write_method(name: str, seq: Dim, batch: Dim, caches: int, width: int) -> Method:
    b = Builder()
    x = b.scratch(rows_type(seq, batch, width=width))
    position = b.value(TensorType(I64, (batch,)), StateSlot(0))
    start = b.value(TensorType(I64, (batch,)), START)
    for i in range(caches):
        whole = rows_type(CAPACITY, batch, width=width)
        cache = b.value(whole, StateSlot(1 + i))
        b.over("kvc::cache_update", cache, Ref(x), Ref(start), 2, "linear", None, 0)
    b.over("aten::add.Scalar", position, seq, 1)
    return b.method(name, {"x": x}, [x], advances=adds(seq))


def look_method(batch: Dim, width: int) -> Method:
    b = Builder()
    cache = b.value(rows_type(CAPACITY, batch, width=width), StateSlot(1))
    return b.method("look", {}, [cache])


def linear_program(
    caches: int = 1,
    batch: Dim = 1,
    width: int = 64,
    layout: tuple[int, ...] = (0, 1, 2, 3),
    start: np.ndarray | None = None,
    capacity: int = 32768,
) -> Built:
    """Return a program with the methods `write(x)`, `step(x)` and `look()`.

    They work on caches [batch, 3, capacity, width] at a position that a state counts.
    `start` is the initial content of the caches.
    """
    counter, cursor = counted(TensorType(I64, (batch,)))
    whole = rows_type(CAPACITY, batch, width=width)
    initial = None if start is None else 0
    if start is not None:
        whole = TensorType(F32, start.shape)
    linear = StateKind.LINEAR
    states = [
        state(f"cache{i}", whole, linear, 2, 0, layout, initial) for i in range(caches)
    ]
    known = SYMBOLS | {"capacity": Symbol("capacity", 1, capacity)}
    symbols = [known[name] for name in ("batch", "capacity", "seq")]
    return program(
        [
            write_method("write", SEQ, batch, caches, width),
            write_method("step", 1, batch, caches, width),
            look_method(batch, width),
        ],
        {} if start is None else {"start": start},
        symbols=symbols if batch == BATCH else symbols[1:],
        states=[counter, *states],
        cursors=[cursor],
    )


def copied_program() -> Built:
    """Return `write(x)`, which writes to a copy of the cache and copies it back."""
    b = Builder({**SYMBOLS, "capacity": Symbol("capacity", 1, 64)})
    whole = rows_type(CAPACITY, width=2)
    x = b.scratch(rows_type(SEQ, width=2))
    position = b.value(ONE, StateSlot(0))
    start = b.value(ONE, START)
    cache, written = b.value(whole, StateSlot(1)), b.scratch(whole)
    arguments = (Ref(cache), Ref(x), Ref(start), 2, "linear", None, 0)
    b.step("kvc::cache_update", arguments, written)
    b.over("aten::copy", cache, Ref(written))
    b.over("aten::add.Scalar", position, SEQ, 1)
    counter, cursor = counted(ONE)
    linear = state("cache", whole, StateKind.LINEAR, 2, cursor=0)
    return program(
        [b.method("write", {"x": x}, [x], advances=adds(SEQ))],
        symbols=(b.symbols["capacity"], SYMBOLS["seq"]),
        states=[counter, linear],
        cursors=[cursor],
    )


def carry_program(capacity: Dim = CAPACITY) -> Built:
    """Return methods over `k` and `v`, float32 [1, 3, n, 64], which grow.

    `grow(x)` appends to both and gives back k; `restart(x)` replaces both;
    `lopsided(x)` appends to k alone; `sums(x)` returns x plus the sum of k over axis 2.
    """
    past, longer, new = rows_type(PAST), rows_type(LONGER), rows_type(SEQ)
    b = Builder()
    x = b.scratch(new)
    k, v = b.value(past, StateSlot(0)), b.value(past, StateSlot(1))
    k2 = b.over("kvc::append", k, Ref(x), 2, kind=longer)
    b.over("kvc::append", v, Ref(x), 2, kind=longer)
    grow = b.method("grow", {"x": x}, [k2], advances=adds(SEQ))

    b = Builder()
    x = b.scratch(new)
    k, v = b.value(rows_type(0), StateSlot(0)), b.value(rows_type(0), StateSlot(1))
    b.over("kvc::replace", k, Ref(x), 2, kind=new)
    b.over("kvc::replace", v, Ref(x), 2, kind=new)
    restart = b.method("restart", {"x": x}, [x])

    b = Builder()
    x = b.scratch(new)
    k = b.value(past, StateSlot(0))
    b.over("kvc::append", k, Ref(x), 2, kind=longer)
    lopsided = b.method("lopsided", {"x": x}, [x])

    b = Builder()
    x = b.scratch(rows_type(1))
    k = b.value(past, StateSlot(0))
    total = b.scratch(rows_type(1))
    b.step("aten::sum.dim_IntList", (Ref(k), (2,), True), total)
    out = b.scratch(rows_type(1))
    b.step("aten::add.Tensor", (Ref(total), Ref(x), 1), out)
    sums = b.method("sums", {"x": x}, [out])
    whole = rows_type(capacity)
    symbols = used_symbols("capacity", "past", "seq")
    if isinstance(capacity, int):
        symbols = (Symbol("past", 0, capacity), SYMBOLS["seq"])
    return program(
        [grow, restart, lopsided, sums],
        symbols=symbols,
        states=[
            state(name, whole, StateKind.APPEND, 2, cursor=0) for name in ("k", "v")
        ],
        cursors=[Cursor("", CursorKind.LENGTH, None, None, capacity)],
    )


def session_program(
    shape: tuple[Dim, ...], batch: Dim = 1, cached: bool = True
) -> Built:
    """Return `write(x)` over a cursor of this shape that the session gives.

    It returns the cursor's value. If `cached`, it also writes x float32 [batch, 3, seq,
    2] into a cache at the cursor.
    """
    b = Builder()
    kind = TensorType(I64, shape)
    x = b.scratch(rows_type(SEQ, batch, width=2))
    given = b.value(kind, PLACES if shape == (SEQ,) else START)
    out = b.scratch(kind)
    b.step("aten::add.Scalar", (Ref(given), 0, 1), out)
    whole = rows_type(CAPACITY, batch, width=2)
    if cached:
        rows = TensorType(I64, shape if shape == (batch,) else (1,))
        start, cache = b.value(rows, START), b.value(whole, StateSlot(0))
        b.over("kvc::cache_update", cache, Ref(x), Ref(start), 2, "linear", None, 0)
    names = ("batch", "capacity", "seq") if batch == BATCH else ("capacity", "seq")
    cache_state = state("cache", whole, StateKind.LINEAR, 2, cursor=0)
    apart = batch if shape == (batch,) else None
    capacity = CAPACITY if cached else None
    return program(
        [b.method("write", {"x": x}, [out], advances=adds(SEQ))],
        symbols=used_symbols(*(names if cached else ("seq",))),
        states=[cache_state] if cached else [],
        cursors=[Cursor("at", CursorKind.SESSION, None, apart, capacity)],
    )


def total_program(count: int) -> Built:
    """Return `add()`, which adds 1 to each element of a state float32 [count]."""
    b = Builder({})
    kind = TensorType(F32, (count,))
    b.over("aten::add.Scalar", b.value(kind, StateSlot(0)), 1, 1)
    total = state("total", kind, StateKind.PLAIN)
    return program([b.method("add", {}, [])], states=[total])


PLAIN = TensorType(F32, (4,))


def mixed_program(plain: StateKind | None = StateKind.PLAIN) -> Built:
    """Return `run(x)`, which writes several states in the middle of its steps.

    States: position, cache [1, 3, capacity, 4] at the position, a second counter, and a
    total [4] of kind `plain` (PLAIN or RING), unless `plain` is None.
    """
    b = Builder()
    x = b.scratch(rows_type(SEQ, width=4))
    position = b.value(ONE, StateSlot(0))
    start = b.value(ONE, START)
    cache = b.value(rows_type(CAPACITY, width=4), StateSlot(1))
    count = b.value(ONE, StateSlot(2))
    total = b.value(PLAIN, StateSlot(3)) if plain is not None else None
    doubled = b.scratch(rows_type(SEQ, width=4))
    b.step("aten::mul.Scalar", (Ref(x), 2), doubled)
    b.over("aten::add.Scalar", count, SEQ, 1)
    b.over("kvc::cache_update", cache, Ref(doubled), Ref(start), 2, "linear", None, 0)
    summed = b.scratch(PLAIN)
    b.step("aten::sum.dim_IntList", (Ref(doubled), (0, 1, 2), False), summed)
    if total is not None:
        b.over("aten::add.Tensor", total, Ref(summed), 1)
    b.over("aten::add.Scalar", position, SEQ, 1)
    out = b.scratch(PLAIN)
    b.step("aten::neg", (Ref(summed),), out)
    counter, cursor = counted(ONE)
    whole = rows_type(CAPACITY, width=4)
    states = [
        counter,
        state("cache", whole, StateKind.LINEAR, 2, cursor=0),
        state("count", ONE, StateKind.COUNTER, cursor=0),
    ]
    if plain is not None:
        axis = None if plain is StateKind.PLAIN else 0
        states.append(state("total", PLAIN, plain, axis))
    return program(
        [b.method("run", {"x": x}, [out], advances=adds(SEQ))],
        symbols=used_symbols("capacity", "seq"),
        states=states,
        cursors=[cursor],
    )


def caller_program(dtype: DType = F32) -> Built:
    """Return two methods over arrays that the caller gives.

    `add(total, x)` adds x to total, [seq, 4], and returns the product of the old total
    and x. `extend(past, x)` returns past with x appended along axis 1, and its
    negation.
    """
    symbols = {"past": Symbol("past", 0, 512), "seq": SYMBOLS["seq"]}
    rows, past, longer = (TensorType(dtype, (2, n, 4)) for n in (SEQ, PAST, LONGER))
    kind = TensorType(dtype, (SEQ, 4))
    b = Builder(symbols)
    total, x = b.value(kind, Caller()), b.scratch(kind)
    product = b.scratch(kind)
    b.step("aten::mul.Tensor", (Ref(total), Ref(x)), product)
    added = b.over("aten::add.Tensor", total, Ref(x), 1)
    add = b.method("add", {"total": total, "x": x}, [added, product])

    b = Builder(symbols)
    old, x = b.value(past, Caller()), b.scratch(rows)
    new = b.over("kvc::append", old, Ref(x), 1, kind=longer)
    negated = b.scratch(longer)
    b.step("aten::neg", (Ref(new),), negated)
    extend = b.method("extend", {"past": old, "x": x}, [new, negated])
    return program([add, extend], symbols=tuple(symbols.values()))


def checked_program() -> Built:
    """Return `put(index, x)` and `rows(start, x)`, which check their indices first.

    Both add 1 to all of a state, and then write x: `put` to the rows `index` of a table
    [8, 4], `rows` to a cache [1, 8, 4] from `start` on.
    """
    b = Builder()
    table_type, x_type = TensorType(F32, (8, 4)), TensorType(F32, (2, 4))
    index, x = b.scratch(TensorType(I64, (2,))), b.scratch(x_type)
    table = b.value(table_type, StateSlot(0))
    b.check(Ref(index), -8, 1, 8)
    more = b.over("aten::add.Scalar", table, 1, 1)
    b.over("aten::index_put", more, (Ref(index),), Ref(x), False)
    put = b.method("put", {"index": index, "x": x}, [x])

    b = Builder()
    start, x = b.scratch(ONE), b.scratch(TensorType(F32, (1, 2, 4)))
    cache = b.value(TensorType(F32, (1, 8, 4)), StateSlot(1))
    b.check(Ref(start), 0, 2, 8)
    more = b.over("aten::add.Scalar", cache, 1, 1)
    b.over("kvc::cache_update", more, Ref(x), Ref(start), 1, "linear", None, 0)
    rows = b.method("rows", {"start": start, "x": x}, [x])
    return program(
        [put, rows],
        states=[
            state("table", table_type, StateKind.PLAIN),
            state("cache", TensorType(F32, (1, 8, 4)), StateKind.PLAIN),
        ],
    )
