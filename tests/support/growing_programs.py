"""A program built by hand whose memory grows, and one with a cursor of the session.

Together they have what the programs of `sample_programs` lack: a state that is appended
to and replaced, an input in the caller's array, results that overwrite memory and are
not updates, a check, and capacities that a session chooses.
"""

from dataclasses import replace

from sample_programs import (
    F32,
    I64,
    SEQ,
    GraphBuilder,
    called,
    declared,
    state,
    tiny_program,
)

from kvc.schema.graph import (
    Alias,
    Caller,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    StateSlot,
)
from kvc.schema.model import Advance, Cursor, CursorKind, Program, StateKind, Update
from kvc.schema.types import Dim, Symbol, TensorType, affine

CAPACITY, PAST = affine(0, {"capacity": 1}), affine(0, {"past": 1})
LONGER = affine(0, {"past": 1, "seq": 1})
ROW = TensorType(F32, (1, 4))
ADDS = (Advance(0, SEQ),)
SYMBOLS = (Symbol("capacity", 1, 64), Symbol("past", 0, 64), Symbol("seq", 1, 8))


def rows(length: Dim) -> TensorType:
    """Return the type float32 [1, length, 4]."""
    return TensorType(F32, (1, length, 4))


def grow_graph() -> Graph:
    """Return the code of `grow(x, total, at)`.

    It appends x to the state, adds the mean of all rows to `total`, and returns the
    mean. The values are: 0 x, 1 rows, 2 total, 3 at, 4 longer rows, 5 mean, 6 new
    total.
    """
    b = GraphBuilder()
    x = b.scratch(rows(SEQ))
    cache = b.value(rows(PAST), StateSlot(0))
    total = b.value(ROW, Caller())
    at = b.scratch(TensorType(I64, (1,)))
    check = Instruction("kvc::check_index", (Ref(at), 0, SEQ, CAPACITY), (), "m:1")
    b.instructions.append(check)
    longer = b.value(rows(LONGER), Alias(cache))
    b.step("kvc::append", (Ref(cache), Ref(x), 1), longer, source="m:2")
    mean = b.scratch(ROW)
    b.step("aten::mean.dim", (Ref(longer), (1,), False), mean, source="m:3")
    added = b.value(ROW, Alias(total))
    b.step("aten::add.Tensor", (Ref(total), Ref(mean), 1), added, source="m:4")
    return b.graph((x, total, at), (mean,))


def restart_graph() -> Graph:
    """Return the code of `restart(x)`, which replaces all rows of the state by x.

    It returns x. The values are: 0 x, 1 rows, 2 new rows.
    """
    b = GraphBuilder()
    x = b.scratch(rows(SEQ))
    cache = b.value(rows(0), StateSlot(0))
    fresh = b.value(rows(SEQ), Alias(cache))
    b.step("kvc::replace", (Ref(cache), Ref(x), 1), fresh, source="m:5")
    return b.graph((x,), (x,))


def growing_program() -> Program:
    """Return a program with `grow(x, total, at)` and `restart(x)`.

    Its state has rows float32 [1, n, 4], where n grows.
    """
    grow, restart = grow_graph(), restart_graph()
    anew = (Update(0, "it is another value", (0,)),)
    methods = (
        called(
            "grow", grow, ("x", "total", "at"), reads=(0,), writes=(0,), advances=ADDS
        ),
        called("restart", restart, ("x",), writes=(0,), updates=anew),
    )
    return replace(
        tiny_program(),
        symbols=SYMBOLS,
        blobs=(),
        names=(),
        states=(state("rows", rows(CAPACITY), StateKind.APPEND, 1, 0),),
        cursors=(Cursor("", CursorKind.LENGTH, None, None, CAPACITY),),
        methods=tuple(map(declared, methods)),
    )


def positioned_program() -> Program:
    """Return a program whose `write(x)` writes x to a state at the session's cursor.

    The state is float32 [1, capacity, 4]. The values are: 0 x, 1 start, 2 rows, 3 new
    rows.
    """
    b = GraphBuilder()
    kind = rows(CAPACITY)
    x = b.scratch(rows(SEQ))
    start = b.value(TensorType(I64, (1,)), CursorSlot(0, CursorField.START))
    cache = b.value(kind, StateSlot(0))
    written = b.value(kind, Alias(cache))
    arguments = (Ref(cache), Ref(x), Ref(start), 1, "linear", None, 0)
    b.step("kvc::cache_update", arguments, written, source="m:6")
    graph = b.graph((x,), (x,))
    used = {"reads": (0,), "writes": (0,), "advances": ADDS}
    return replace(
        growing_program(),
        symbols=(SYMBOLS[0], SYMBOLS[2]),
        states=(state("rows", kind, StateKind.LINEAR, 1, 0),),
        cursors=(Cursor("position", CursorKind.SESSION, None, None, CAPACITY),),
        methods=(called("write", graph, ("x",), **used),),
    )
