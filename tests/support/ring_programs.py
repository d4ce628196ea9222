"""A program made by hand with two rings of a window, and ways to break it.

`run(x)` writes x float32 [1, 2, seq, 4] into both rings at the position. It then
attends over the rings, with x as the queries.
"""

from collections.abc import Sequence
from dataclasses import replace

from hand_built import END, F32, I64, SEQ, START, Built, adds, program
from sample_programs import changed
from stateful_programs import Builder, state

from kvc.schema.graph import Argument, Instruction, Ref, StateSlot
from kvc.schema.model import Cursor, CursorKind, Program, StateKind
from kvc.schema.rings import Window
from kvc.schema.types import Symbol, TensorType

WINDOW, SLOTS = 5, 12
SYMBOLS = {"seq": Symbol("seq", 1, SLOTS)}
ROWS = TensorType(F32, (1, 2, SEQ, 4))
RING = TensorType(F32, (1, 2, SLOTS, 4))
ONE = TensorType(I64, (1,))
OPS = ("keys", "values", "attention", "position")  # in the order of running


def ring_program(
    capacity: int | None = None, slots: int = SLOTS, keep: int = 0
) -> Built:
    """Return the valid program, whose rings keep the first `keep` positions."""
    symbols = {"seq": Symbol("seq", 1, slots)}
    whole = TensorType(F32, (1, 2, slots, 4))
    b = Builder(symbols)
    x, out = b.scratch(ROWS), b.scratch(ROWS)
    position = b.value(ONE, StateSlot(0))
    start, end = b.value(ONE, START), b.value(ONE, END)
    caches = [b.value(whole, StateSlot(i)) for i in (1, 2)]
    keys, values = (
        b.over(
            "kvc::cache_update", cache, Ref(x), Ref(start), 2, "circular", None, keep
        )
        for cache in caches
    )
    b.step("kvc::attention", _attention(x, keys, values, end, keep), out)
    b.over("aten::add.Scalar", position, SEQ, 1)
    ring = state("keys", whole, StateKind.RING, 2, cursor=0)
    ring = replace(ring, window=Window(WINDOW, keep))
    return program(
        [b.method("run", {"x": x}, [out], advances=adds(SEQ))],
        symbols=tuple(symbols.values()),
        states=[
            state("position", ONE, StateKind.COUNTER, cursor=0),
            ring,
            replace(ring, name="values"),
        ],
        cursors=[Cursor("position", CursorKind.STATE, 0, None, capacity)],
    )


def _attention(x: int, keys: int, values: int, end: int, keep: int) -> list[Argument]:
    settings = [None, True, WINDOW - 1, None, None, None, None, None, "circular"]
    return [Ref(x), Ref(keys), Ref(values), Ref(end), *settings, None, None, None, keep]


def with_state(whole: Program, number: int, **fields: object) -> Program:
    """Return the program with fields of state `number` (1 or 2, the rings) replaced."""
    return replace(whole, states=changed(whole.states, number, **fields))


def with_run(whole: Program, **fields: object) -> Program:
    return replace(whole, methods=changed(whole.methods, 0, **fields))


def with_argument(whole: Program, step: str, place: int, given: Argument) -> Program:
    """Return the program with argument `place` of a step in `OPS` replaced."""
    steps, index = whole.methods[0].graph.instructions, OPS.index(step)
    arguments = list(steps[index].arguments)
    arguments[place] = given
    return with_steps(whole, changed(steps, index, arguments=tuple(arguments)))


def with_steps(whole: Program, steps: Sequence[Instruction]) -> Program:
    graph = replace(whole.methods[0].graph, instructions=tuple(steps))
    return with_run(whole, graph=graph)
