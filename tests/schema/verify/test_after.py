"""Writes after where a call starts: each check on them, broken by itself."""

from dataclasses import replace

import pytest
from hand_built import END, PLACES, SEQ, START, adds, program
from moved_code import in_branches, in_partition
from ragged_programs import ragged_program
from stateful_programs import (
    CAPACITY,
    Builder,
    counted,
    rows_type,
    state,
    used_symbols,
)

from kvc.schema.dtypes import DType
from kvc.schema.errors import FormatError
from kvc.schema.graph import CursorSlot, Instruction, Ref, Scratch, StateSlot, Value
from kvc.schema.model import CursorKind, Program, StateKind
from kvc.schema.types import Dim, TensorType
from kvc.schema.verify import verify_program

LINEAR, ONE = StateKind.LINEAR, TensorType(DType.INT64, (1,))
RAGGED, _ = ragged_program()
WRITE = RAGGED.methods[0]


def as_it_is(program: Program) -> Program:
    return program


in_each_block = pytest.mark.parametrize("way", [as_it_is, in_partition, in_branches])


def wants(whole: Program, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        verify_program(whole, "x", thorough=True)


def chunks(
    *counts: Dim, tokens: Dim = SEQ, of: CursorSlot = START, to: StateKind = LINEAR
) -> Program:
    """Return a program whose call writes twice: again so many `counts` further."""
    counter, cursor = counted(ONE)
    kind = rows_type(CAPACITY, 1, width=2)
    cache = state("cache", kind, to, 2, cursor=0)
    b = Builder()
    x, index = b.scratch(rows_type(1, 1, width=2)), b.value(ONE, of)
    position, held = b.value(ONE, StateSlot(0)), b.value(kind, StateSlot(1))
    mode = "linear" if to is LINEAR else "circular"
    for count in (None, *counts):
        if count is not None:
            index = b.step("kvc::after", (Ref(index), count), b.scratch(ONE))
        operands = Ref(x), Ref(index), 2, mode, None, 0
        held = b.over("kvc::cache_update", held, *operands)
    b.over("aten::add.Scalar", position, tokens, 1)
    method = b.method("write", {"x": x}, [x], advances=adds(tokens))
    symbols = used_symbols("capacity", "seq")
    made = program([method], symbols=symbols, states=(counter, cache), cursors=[cursor])
    return made[0]


@in_each_block
@pytest.mark.parametrize("to", [LINEAR, StateKind.RING])
def test_several_writes_of_what_a_call_adds_may_be_after_the_start(way, to):
    verify_program(way(chunks(1, 1, 0, tokens=3, to=to)), "x", thorough=True)


@in_each_block
@pytest.mark.parametrize(
    ("counts", "tokens"),
    [((1,), 1), ((1, 1), 2), ((2,), 2), ((1,), SEQ), ((SEQ,), SEQ)],
)
def test_no_write_goes_past_what_a_call_adds(way, counts, tokens):
    offset = counts[0] if len(counts) == 1 else 2
    text = f"a write of 1 positions, {offset} after the start, the call adds {tokens}"
    wants(way(chunks(*counts, tokens=tokens)), text)


def test_nothing_is_after_a_start_by_less_than_none():
    wants(chunks(1, -1, tokens=3), "kvc::after.*-1 after")


@in_each_block
@pytest.mark.parametrize("of", [END, PLACES])
def test_what_is_after_another_field_is_after_no_start(way, of):
    b = Builder()
    index, x = b.value(ONE, of), b.scratch(ONE)
    b.step("kvc::after", (Ref(index), 1), b.scratch(ONE))
    counter, cursor = counted(ONE)
    position = b.value(ONE, StateSlot(0))
    b.over("aten::add.Scalar", position, 3, 1)
    made, _ = program(
        [b.method("write", {"x": x}, [x], advances=adds(3))],
        states=(counter,),
        cursors=[replace(cursor, capacity=None)],
    )
    wants(way(made), "its first operand is not a cursor's start")


def test_what_is_after_another_cursor_s_start_is_not_at_this_one():
    whole = chunks(1, tokens=2)
    other = replace(whole.cursors[0], kind=CursorKind.SESSION, state=None, name="at")
    (method,) = whole.methods
    values = tuple(
        replace(v, storage=CursorSlot(1, v.storage.field))
        if isinstance(v.storage, CursorSlot)
        else v
        for v in method.graph.values
    )
    broken = replace(method, graph=replace(method.graph, values=values))
    whole = replace(whole, methods=(broken,), cursors=(*whole.cursors, other))
    wants(whole, "the write of the state 'cache' does not begin at its cursor")


@in_each_block
def test_rows_that_count_apart_are_written_in_one_go(way):
    """Nobody knows where the next chunk of each row would begin."""
    wants(way(ragged_after(1)), "a write of seq positions, 1 after the start")


def ragged_after(count: int) -> Program:
    """Return the ragged program with its write so many positions after the start."""
    values = list(WRITE.graph.values)
    start = next(i for i, v in enumerate(values) if v.storage == START)
    kind = values[start].type
    top = max(
        v.storage.offset + v.storage.nbytes
        for v in values
        if isinstance(v.storage, Scratch)
    )
    place = -(-top // 64) * 64
    nbytes = kind.max_nbytes({s.name: s for s in RAGGED.symbols})
    values.append(Value(kind, Scratch(place, nbytes)))
    after = Instruction("kvc::after", (Ref(start), count), (len(values) - 1,), "m:1")
    update, *rest = WRITE.graph.instructions
    arguments = list(update.arguments)
    arguments[2] = Ref(len(values) - 1)
    steps = (after, replace(update, arguments=tuple(arguments)), *rest)
    size = place + -(-nbytes // 64) * 64
    graph = replace(
        WRITE.graph, values=tuple(values), instructions=steps, scratch_nbytes=size
    )
    updates = tuple(replace(u, instruction=u.instruction + 1) for u in WRITE.updates)
    return replace(RAGGED, methods=(replace(WRITE, graph=graph, updates=updates),))
