"""Each check on cursors, and on states and windows at them, broken by itself.

Most programs are tried as they are, and with all their code in the block of a delegate.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from block_programs import with_value
from growing_programs import CAPACITY, PAST, growing_program
from hand_built import END, F32, I64, LENGTHS, PLACES, SEQ, START, adds
from moved_code import in_branches, in_partition, with_block
from ragged_programs import ragged_program
from ring_programs import (
    ONE,
    RING,
    ROWS,
    SLOTS,
    SYMBOLS,
    WINDOW,
    ring_program,
    with_argument,
    with_run,
    with_state,
)
from sample_programs import sample_program
from stateful_programs import BATCH, Builder, rows_type, state

from kvc.schema.codec import decode, encode
from kvc.schema.dtypes import DType
from kvc.schema.errors import FormatError
from kvc.schema.graph import Alias, CursorSlot, Ref, StateSlot, Value
from kvc.schema.model import Advance, Cursor, CursorKind, Program, StateKind
from kvc.schema.rings import Window
from kvc.schema.types import Affine, Dim, TensorType, affine
from kvc.schema.verify import verify_program

SAMPLE, GROWING = sample_program(), growing_program()
WHOLE, _ = ring_program()
RAGGED, _ = ragged_program()
WRITE, STEP = RAGGED.methods
ONLY_WRITE = replace(RAGGED, methods=(WRITE,))
Way = Callable[[Program], Program]


def as_it_is(program: Program) -> Program:
    return program


in_each_way = pytest.mark.parametrize("way", [as_it_is, in_partition])
in_each_block = pytest.mark.parametrize("way", [as_it_is, in_partition, in_branches])


def wants(program: Program, text: str) -> None:
    with pytest.raises(FormatError, match=text) as caught:
        verify_program(program, "x", thorough=True)
    assert str(caught.value).startswith("x: ")


class Run(Builder):
    """A method `run(x)` over the two rings, in the making."""

    def __init__(self) -> None:
        super().__init__(SYMBOLS)
        self.x = self.scratch(ROWS)
        self.start, self.end = self.value(ONE, START), self.value(ONE, END)
        self.position = self.value(ONE, StateSlot(0))
        self.keys, self.values_ring = (self.value(RING, StateSlot(i)) for i in (1, 2))
        self.more: dict[str, int] = {}

    def write(self, ring: int, update: int, start: int) -> int:
        operands = Ref(update), Ref(start), 2, "circular", None, 0
        return self.over("kvc::cache_update", ring, *operands)

    def write_both(self) -> tuple[int, int]:
        rings = self.keys, self.values_ring
        keys, values = (self.write(ring, self.x, self.start) for ring in rings)
        return keys, values

    def attend(self, q: int, keys: int, values: int, kind: TensorType = ROWS) -> int:
        settings = [None, True, WINDOW - 1, *[None] * 5, "circular", *[None] * 3, 0]
        operands = [Ref(q), Ref(keys), Ref(values), Ref(self.end)]
        return self.step("kvc::attention", [*operands, *settings], self.scratch(kind))

    def program(self, *outputs: int) -> Program:
        self.over("aten::add.Scalar", self.position, SEQ, 1)
        inputs = {"x": self.x, **self.more}
        made = self.method("run", inputs, outputs, advances=adds(SEQ))
        return replace(WHOLE, methods=(made,))


# What is there to begin with


@in_each_way
def test_rings_are_sound_and_come_back(way):
    verify_program(way(WHOLE), "x", thorough=True)
    assert decode(encode(way(WHOLE)), "x") == way(WHOLE)


@in_each_block
@pytest.mark.parametrize("method", [WRITE, STEP])
def test_rows_of_their_own_lengths_are_sound(way, method):
    one = way(replace(RAGGED, methods=(method,)))
    verify_program(one, "x", thorough=True)
    assert decode(encode(one), "x") == one


# Cursors by themselves


@pytest.mark.parametrize(
    ("cursor", "text"),
    [
        (Cursor("x\n", CursorKind.STATE, 1, 1, None), "printed"),
        (Cursor("", CursorKind.STATE, None, 1, None), "kind and state"),
        (Cursor("x", CursorKind.SESSION, 1, 1, None), "kind and state"),
        (Cursor("", CursorKind.LENGTH, 1, None, None), "kind and state"),
        (Cursor("", CursorKind.STATE, 2, 1, None), "no such state"),
        (Cursor("", CursorKind.STATE, 0, 1, None), "it is LINEAR of .*, not COUNTER"),
        (Cursor("", CursorKind.LENGTH, None, None, None), "no state grows by append"),
        (Cursor("", CursorKind.STATE, 1, 1, 2**40), "limit"),
        (Cursor("", CursorKind.STATE, 1, 1, -1), "can be -1"),
        (Cursor("", CursorKind.STATE, 1, 1, affine(-2, {"seq": 1})), "can be -1"),
        (Cursor("", CursorKind.STATE, 1, 1, Affine(1, ())), "canonical"),
        (Cursor("", CursorKind.STATE, 1, -1, None), "can be -1"),
        (Cursor("", CursorKind.STATE, 1, SEQ, None), r"its rows seq has \['seq'\]"),
        (Cursor("", CursorKind.STATE, 1, affine(0, {"b": 1}), None), "undeclared"),
    ],
)
def test_a_bad_cursor_is_refused(cursor, text):
    wants(replace(SAMPLE, cursors=(cursor,)), f"cursor 0.*{text}")
    if "its" not in text and cursor.state != 1:
        wants(replace(SAMPLE, cursors=(*SAMPLE.cursors, cursor)), f"cursor 1.*{text}")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"type": TensorType(DType.INT32, (1,)), "initial": None}, "COUNTER of int32"),
        ({"kind": StateKind.PLAIN, "cursor": None}, "it is PLAIN of .*, not COUNTER"),
    ],
)
def test_a_cursor_is_a_counter_of_int64(change, text):
    states = (SAMPLE.states[0], replace(SAMPLE.states[1], **change))
    wants(replace(SAMPLE, states=states), text)


@pytest.mark.parametrize("rows", [None, 3])
def test_a_cursor_has_its_state_s_rows(rows):
    cursors = (replace(RAGGED.cursors[0], rows=rows),)
    wants(replace(RAGGED, cursors=cursors), f"cursor 0: its state is .*rows are {rows}")


def test_rows_count_at_one_cursor():
    (advance,) = WRITE.advances
    more = Cursor("more", CursorKind.SESSION, None, RAGGED.cursors[0].rows, None)
    twice = replace(WRITE, advances=(advance, replace(advance, cursor=1)))
    changed = replace(RAGGED, methods=(twice, STEP), cursors=(*RAGGED.cursors, more))
    wants(changed, r"rows count tokens of several cursors, \[0, 1\]")


def test_a_state_is_one_cursor():
    wants(replace(SAMPLE, cursors=SAMPLE.cursors * 2), "counts as the cursor 0")
    other = Cursor("", CursorKind.SESSION, None, 1, None)
    counter = replace(SAMPLE.states[1], cursor=1)
    program = replace(SAMPLE, states=(SAMPLE.states[0], counter))
    two = replace(program, cursors=(*SAMPLE.cursors, other))
    wants(two, "cursor 0.* counts as the cursor 1")


@pytest.mark.parametrize(
    "capacity", [None, 0, 64, CAPACITY, affine(1, {"capacity": 2})]
)
def test_a_capacity_is_of_symbols_that_states_use(capacity):
    cursor = replace(GROWING.cursors[0], capacity=capacity)
    verify_program(replace(GROWING, cursors=(cursor,)), "x")


@pytest.mark.parametrize("capacity", [SEQ, PAST, affine(0, {"capacity": 1, "seq": 1})])
def test_a_capacity_is_of_no_other_symbols(capacity):
    cursor = replace(GROWING.cursors[0], capacity=capacity)
    text = r"its capacity .* has \['(seq|past)'\], which no state does"
    wants(replace(GROWING, cursors=(cursor,)), text)


# Fields of a cursor


def with_field(slot: CursorSlot, kind: TensorType) -> Program:
    """Return the program whose method is given one more field of a cursor."""
    graph = WHOLE.methods[0].graph
    values = (*graph.values, Value(kind, slot))
    return with_run(WHOLE, graph=replace(graph, values=values))


def test_a_field_is_of_a_cursor_that_is_there():
    for number in (1, 2**40):
        wants(with_field(CursorSlot(number, START.field), ONE), f"no cursor {number}")


@pytest.mark.parametrize("slot", [START, END, LENGTHS, PLACES])
@pytest.mark.parametrize(
    "kind", [TensorType(DType.INT32, (1,)), TensorType(I64, (1, 1))]
)
def test_a_field_is_int64_of_rank_one_at_most(slot, kind):
    wants(with_field(slot, kind), f"is not the {slot.field.name} of a cursor")


@pytest.mark.parametrize("slot", [START, END, LENGTHS, PLACES])
def test_a_field_has_the_cursor_s_rows(slot):
    program = with_field(slot, TensorType(I64, (3,)))
    verify_program(program, "x")  # all rows are at one place
    program = replace(program, cursors=(replace(WHOLE.cursors[0], rows=1),))
    if slot is PLACES:
        verify_program(program, "x")
    else:
        wants(program, r"int64\[3\] for 1 rows")


@pytest.mark.parametrize("slot", [END, LENGTHS])
def test_what_advances_nothing_has_no_end(slot):
    b = Builder(SYMBOLS)
    out = b.step("aten::clone", (Ref(b.value(ONE, slot)),), b.scratch(ONE))
    still = replace(WHOLE, methods=(*WHOLE.methods, b.method("look", {}, [out])))
    wants(still, f"the {slot.field.name} of a method that advances nothing")


@pytest.mark.parametrize("way", [in_partition, in_branches])
def test_a_block_has_no_field_of_its_own(way):
    program = way(ONLY_WRITE)
    graph = program.methods[0].blocks[0].graph
    values = (*graph.values, Value(ONE, START))
    wants(with_block(program, values=values), "a block has a cursor field of its own")


@pytest.mark.parametrize("op", ["aten::add.Scalar", "aten::copy", "aten::index_put"])
def test_a_field_is_never_written(op):
    b = Run()
    given = {
        "aten::add.Scalar": (1, 1),
        "aten::copy": (Ref(b.end),),
        "aten::index_put": ((Ref(b.end),), Ref(b.end), False),
    }
    b.over(op, b.start, *given[op])
    wants(b.program(b.attend(b.x, *b.write_both())), "writes over a cursor|fresh kind")


@pytest.mark.parametrize("way", [in_partition, in_branches])
def test_a_field_is_never_written_in_a_block(way):
    b = Builder(SYMBOLS)
    x, start = b.scratch(ROWS), b.value(ONE, START)
    copied = b.over("aten::copy", start, Ref(start))
    made = b.method("run", {"x": x}, [copied], advances=adds(SEQ))
    session = Cursor("", CursorKind.SESSION, None, 1, None)
    bare = replace(WHOLE, states=(), cursors=(session,), methods=(made,))
    wants(bare, "writes over a cursor")
    wants(way(bare), "writes over a cursor")


# Row lengths


def with_lengths(lengths: int | None, tokens: Dim = SEQ) -> Program:
    advances = (Advance(0, tokens, lengths),)
    return replace(RAGGED, methods=(replace(WRITE, advances=advances), STEP))


def test_row_lengths_are_an_input():
    wants(with_lengths(2), "method 'write': no input 2 of row lengths")


def test_row_lengths_are_of_rows():
    wants(with_lengths(0), "its row lengths 'x', float32.* are not int64 or bool")


def test_a_bool_counts_one_token():
    step = replace(STEP, advances=adds(2, 1))
    program = replace(RAGGED, methods=(WRITE, step))
    wants(program, "its row lengths 'row_lengths', bool.* are of 2 tokens")


def other_rows(rows: Dim) -> Program:
    """Return a program whose method `write` takes lengths of other rows."""
    b = Builder()
    x = b.scratch(rows_type(SEQ, BATCH, width=2))
    lengths = b.scratch(TensorType(I64, (rows,)))
    position = b.value(TensorType(I64, (BATCH,)), StateSlot(0))
    b.over("aten::add.Scalar", position, SEQ, 1)
    inputs = {"x": x, "row_lengths": lengths}
    method = b.method("write", inputs, [x], advances=adds(SEQ, 1))
    return replace(RAGGED, methods=(method, STEP))


@pytest.mark.parametrize("rows", [2, SEQ])
def test_row_lengths_are_of_the_cursor_s_rows(rows):
    text = rf"int64\[{rows}\], are not those of the cursor's rows batch"
    wants(other_rows(rows), text)
    verify_program(other_rows(BATCH), "x")


def test_where_all_rows_are_at_one_place_there_is_one_length():
    (held,) = RAGGED.cursors
    states = list(RAGGED.states)
    counter = states[held.state]
    states[held.state] = replace(counter, kind=StateKind.PLAIN, cursor=None)
    cursor = replace(held, kind=CursorKind.SESSION, state=None, rows=None)
    changed = replace(RAGGED, cursors=(cursor,), states=tuple(states))
    wants(changed, "not those of the cursor's rows None")


def test_rows_of_what_grows_have_one_length():
    grown = rows_type(64, BATCH, width=2)
    grows = state("grown", grown, StateKind.APPEND, 2, cursor=0)
    b = Builder()
    x = b.scratch(rows_type(SEQ, BATCH, width=2))
    lengths = b.scratch(TensorType(I64, (BATCH,)))
    position = b.value(TensorType(I64, (BATCH,)), StateSlot(0))
    held = b.value(rows_type(0, BATCH, width=2), StateSlot(2))
    b.over("kvc::replace", held, Ref(x), 2, kind=rows_type(SEQ, BATCH, width=2))
    b.over("aten::add.Tensor", position, Ref(lengths), 1)
    inputs = {"x": x, "row_lengths": lengths}
    method = b.method("write", inputs, [x], advances=adds(SEQ, 1))
    program = replace(RAGGED, states=(*RAGGED.states, grows), methods=(method, STEP))
    wants(
        program, r"the states \[2\], which are written at the cursor, have one length"
    )


# States at a cursor


def ragged_with(place: int, given: object) -> Program:
    """Return the program whose cache update has another argument."""
    return with_argument(ONLY_WRITE, "keys", place, given)


@in_each_block
@pytest.mark.parametrize("lengths", [None, Ref(1), Ref(2), Ref(4)])
def test_a_state_is_written_by_the_method_s_lengths(way, lengths):
    text = "its row lengths are not those of the method"
    wants(way(ragged_with(5, lengths)), text)


@in_each_block
def test_where_all_tokens_count_a_write_counts_none(way):
    method = replace(WRITE, advances=adds(SEQ))
    text = "it has row lengths, the method has none"
    wants(way(replace(RAGGED, methods=(method,))), text)


@in_each_block
@pytest.mark.parametrize("start", [None, Ref(1), Ref(2), Ref(5)])
def test_a_state_is_written_from_the_start(way, start):
    text = "the write of the state 'cache' does not begin at its cursor"
    wants(way(ragged_with(2, start)), text)


@in_each_block
@pytest.mark.parametrize("tokens", [1, affine(1, {"seq": 1})])
def test_a_state_is_written_as_far_as_the_call_adds(way, tokens):
    method = replace(WRITE, advances=adds(tokens, 1))
    program = way(replace(RAGGED, methods=(method,)))
    wants(program, f"a write of seq positions, the call adds {str(tokens)[:2]}")


def test_a_method_that_adds_nothing_writes_nothing_there():
    (cache,) = (v for v in WRITE.graph.values if v.storage == StateSlot(1))
    b = Builder()
    x = b.scratch(rows_type(SEQ, BATCH, width=2))
    start = b.value(TensorType(I64, (BATCH,)), START)
    held = b.value(cache.type, StateSlot(1))
    b.over("kvc::cache_update", held, Ref(x), Ref(start), 2, "linear", None, 0)
    put = b.method("put", {"x": x}, [x])
    wants(
        replace(RAGGED, methods=(WRITE, put)), "a write of seq .*, the call adds None"
    )


@in_each_block
@pytest.mark.parametrize("changes", [{"axis": 3}, {"kind": StateKind.RING}])
def test_a_state_is_written_along_its_slots(way, changes):
    cache = replace(RAGGED.states[1], **changes)
    program = replace(ONLY_WRITE, states=(RAGGED.states[0], cache))
    wants(way(program), "it writes the state 'cache'.* along axis 2, linear")


def test_a_state_is_written_in_its_own_order():
    """Its axes turned, the same numbers name other slots."""
    square = TensorType(F32, (1, 12, 12, 4))
    b = Run()
    x = b.scratch(TensorType(F32, (1, 12, SEQ, 4)))
    held = b.value(square, StateSlot(3))
    turned = b.over("aten::transpose.int", held, 1, 2, kind=square)
    b.over("kvc::cache_update", turned, Ref(x), Ref(b.start), 2, "linear", None, 0)
    b.more["rows"] = x
    out = b.attend(b.x, *b.write_both())
    program = b.program(out)
    extra = state("square", square, StateKind.LINEAR, 2, cursor=0)
    program = replace(program, states=(*WHOLE.states, extra))
    wants(program, "it writes the state 'square'.* along axis 2, linear")


@in_each_block
def test_what_is_at_no_cursor_may_be_written_anywhere(way):
    cache = replace(RAGGED.states[1], cursor=None)
    for program in (ragged_with(5, None), ragged_with(2, Ref(1))):
        program = replace(program, states=(RAGGED.states[0], cache))
        verify_program(way(program), "x")


# Windows


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": StateKind.LINEAR}, "a window of no ring at a cursor"),
        ({"cursor": None}, "a window of no ring at a cursor"),
        ({"window": Window(0)}, "a window of 0 in a ring of 12 slots"),
        ({"window": Window(SLOTS + 1)}, "a window of 13 in a ring of 12 slots"),
        (
            {"window": Window(WINDOW, 8)},
            "a window of 5 and the first 8 in a ring of 12",
        ),
        ({"window": Window(WINDOW - 1)}, "a window of 4, its queries see 5"),
        ({"window": Window(WINDOW + 1)}, "a window of 6, its queries see 5"),
    ],
)
def test_what_a_state_says_must_be_so(number, change, text):
    wants(with_state(WHOLE, number, **change), text)


def test_a_ring_with_a_window_has_the_rows_of_its_cursor():
    """The position of three rows, for rings of one."""
    graph = WHOLE.methods[0].graph
    for number, value in enumerate(graph.values):
        if graph.values[graph.root_of(number)].storage == StateSlot(0):
            graph = with_value(graph, number, type=replace(value.type, dims=(3,)))
    cursors = (replace(WHOLE.cursors[0], rows=3),)
    whole = with_state(with_run(WHOLE, graph=graph), 0, type=TensorType(I64, (3,)))
    wants(replace(whole, cursors=cursors), "rows of 'keys' are not those of its cursor")


def test_a_window_of_what_has_no_ring_is_refused():
    wants(with_state(WHOLE, 0, window=Window(1)), "a window of no ring")


def test_a_window_is_what_is_seen_in_a_block():
    wants(
        in_partition(with_state(WHOLE, 1, window=Window(4))),
        "a window of 4, its queries see 5",
    )


@in_each_way
@pytest.mark.parametrize("step", ["keys", "values"])
@pytest.mark.parametrize(
    ("place", "given", "text"),
    [
        (4, "linear", "along axis 2, linear"),
        (2, None, "does not begin at its cursor"),
        (2, Ref(2), "does not begin at its cursor"),
        (2, Ref(4), "does not begin at its cursor"),
    ],
)
def test_a_ring_is_written_round_and_from_the_start(way, step, place, given, text):
    wants(way(with_argument(WHOLE, step, place, given)), text)


@in_each_way
@pytest.mark.parametrize(
    ("place", "given", "text"),
    [
        (12, "linear", "read as linear"),
        (6, None, "read without a window"),
        (6, WINDOW, "a window of 5, its queries see 6"),
        (6, WINDOW - 2, "a window of 5, its queries see 4"),
        (3, Ref(2), "not read up to where its cursor ends"),
        (3, Ref(3), "not read up to where its cursor ends"),
    ],
)
def test_a_reader_sees_a_window_that_ends_with_the_call(way, place, given, text):
    wants(way(with_argument(WHOLE, "attention", place, given)), text)


@in_each_way
@pytest.mark.parametrize("step", ["keys", "values", "attention"])
def test_writes_and_readers_keep_what_the_window_does(way, step):
    kept = ring_program(keep=3)[0]
    verify_program(way(kept), "x", thorough=True)
    for whole, own, other in ((kept, "5 and the first 3", 0), (WHOLE, "5", 3)):
        text = f"it keeps {other} positions of 'keys', whose window is {own}$"
        if step == "values":
            text = text.replace("keys", "values")
        wants(way(with_argument(whole, step, -1, other)), text)


@in_each_way
@pytest.mark.parametrize("step", ["keys", "attention"])
@pytest.mark.parametrize("keep", [-1, SLOTS, SLOTS + 1])
def test_a_ring_keeps_less_than_its_slots(way, step, keep):
    wants(way(with_argument(WHOLE, step, -1, keep)), f"{keep} positions of .* kept, ci")


@in_each_way
@pytest.mark.parametrize(("step", "place"), [("keys", 4), ("attention", 12)])
def test_a_linear_cache_keeps_all_and_says_nothing_of_it(way, step, place):
    linear = with_argument(ring_program(keep=3)[0], step, place, "linear")
    wants(way(linear), "3 positions of .* kept, linear")


def test_what_advances_writes_all_rings():
    b = Builder(SYMBOLS)
    x, position = b.scratch(ROWS), b.value(ONE, StateSlot(0))
    b.over("aten::add.Scalar", position, SEQ, 1)
    skip = b.method("skip", {"x": x}, [x], advances=adds(SEQ))
    whole = replace(WHOLE, methods=(*WHOLE.methods, skip))
    wants(whole, r"does not write the rings \[1, 2\]")


@in_each_way
@pytest.mark.parametrize("queries", [1, 2])
def test_queries_are_the_last_tokens_of_the_call(way, queries):
    """A call may be of one token, which is one query at most."""
    b = Run()
    some = TensorType(F32, (1, 2, queries, 4))
    b.more["q"] = b.scratch(some)
    made = way(b.program(b.attend(b.more["q"], *b.write_both(), kind=some)))
    if queries == 1:
        verify_program(made, "the call")
    else:
        wants(made, "2 queries over a ring, the last write is of")


@in_each_way
def test_a_ring_is_written_before_it_is_read(way):
    b = Run()
    out = b.attend(b.x, b.keys, b.values_ring)
    b.write_both()
    wants(way(b.program(out)), "read before it is written")


@in_each_way
def test_a_ring_is_no_query(way):
    b = Run()
    keys, values = b.write_both()
    wants(way(b.program(b.attend(keys, keys, values, RING))), "a ring is no cache here")


@in_each_way
def test_slots_are_what_is_attended_over(way):
    b = Run()
    rows = TensorType(F32, (1, SLOTS, SEQ, 4))
    b.more["q"] = b.scratch(rows)
    turned = TensorType(F32, (1, SLOTS, 2, 4))
    views = [
        b.over("aten::transpose.int", ring, 1, 2, kind=turned)
        for ring in b.write_both()
    ]
    out = b.attend(b.more["q"], *views, kind=rows)
    wants(way(b.program(out)), "slots are no positions here")


@in_each_way
def test_a_ring_turned_and_turned_back_is_itself(way):
    b = Run()
    turned = TensorType(F32, (1, SLOTS, 2, 4))
    views = []
    for ring in b.write_both():
        view = b.over("aten::permute", ring, (0, 2, 1, -1), kind=turned)
        views.append(b.over("aten::transpose.int", view, -2, 1, kind=RING))
    verify_program(way(b.program(b.attend(b.x, *views))), "x", thorough=True)


@in_each_way
def test_a_ring_is_not_cut(way):
    b = Run()
    keys, values = b.write_both()
    flat = TensorType(F32, (1, 2, SLOTS * 4))
    b.over("aten::view", keys, (1, 2, SLOTS * 4), kind=flat)
    wants(way(b.program(b.attend(b.x, keys, values))), "aten::view of a ring")


@in_each_way
def test_a_ring_is_not_written_with_another_one(way):
    b = Run()
    values = b.write(b.values_ring, b.x, b.start)
    b.write(b.keys, values, b.start)
    wants(way(b.program(b.x)), "a write of a ring with a window")


@in_each_way
def test_a_ring_is_not_written_to_another_state(way):
    b = Run()
    other = b.value(RING, StateSlot(3))
    keys, values = b.write_both()
    b.over("kvc::cache_update", other, Ref(keys), None, 2, "circular", None, 0)
    program = b.program(b.attend(b.x, keys, values))
    plain = state("other", RING, StateKind.RING, 2)
    program = replace(program, states=(*WHOLE.states, plain))
    wants(way(program), "kvc::cache_update of a ring with a window")


@in_each_way
def test_nothing_else_reads_a_ring(way):
    b = Run()
    keys, _ = b.write_both()
    out = b.step("aten::clone", (Ref(keys),), b.scratch(RING))
    wants(way(b.program(out)), "aten::clone of a ring with a window")


@in_each_way
def test_nothing_else_is_written_over_a_ring(way):
    b = Run()
    keys, _ = b.write_both()
    full = b.scratch(RING)
    b.step("aten::full", ((1, 2, SLOTS, 4), 0.0, F32), full)
    b.step("aten::neg", (Ref(full),), b.value(RING, Alias(keys)))
    wants(way(b.program(b.x)), "aten::neg over a ring with a window")


@in_each_way
def test_a_ring_is_not_copied_by_its_write(way):
    b = Run()
    keys, _ = b.write_both()
    copied = b.scratch(RING)
    operands = Ref(keys), Ref(b.x), Ref(b.start), 2, "circular", None, 0
    b.step("kvc::cache_update", operands, copied)
    wants(way(b.program(b.x)), "a copy of a ring with a window")


def test_a_ring_is_not_handed_out():
    b = Run()
    keys, values = b.write_both()
    whole = b.program(b.attend(b.x, keys, values), keys)
    wants(whole, r"it hands the rings \[1\] with a window out")
    wants(in_partition(whole), "a copy of a ring with a window")


def test_a_ring_is_not_handed_out_of_a_block():
    b = Run()
    moved = in_partition(b.program(b.attend(b.x, *b.write_both())))
    method = moved.methods[0]
    (step,) = method.graph.instructions
    roots = {method.graph.root_of(v): v for v in step.results}
    (ring,) = (
        v for r, v in roots.items() if method.graph.values[r].storage == StateSlot(1)
    )
    graph = replace(method.graph, outputs=(*method.graph.outputs, ring))
    given = replace(method, graph=graph, output_tree='{"tuple": [0, 1]}')
    wants(replace(moved, methods=(given,)), r"it hands the rings \[1\]")


def test_a_ring_may_be_used_in_branches_that_do_the_same():
    verify_program(in_branches(WHOLE), "x", thorough=True)


def counted(lengths: bool = True, attended: bool = True) -> Program:
    """Return the program in which tokens of each row count."""
    b = Run()
    given, slot = b.scratch(ONE), b.value(ONE, LENGTHS)
    b.more["row_lengths"] = given
    found = Ref(slot) if lengths else Ref(given)
    rings = []
    for ring in (b.keys, b.values_ring):
        operands = Ref(b.x), Ref(b.start), 2, "circular", found, 0
        rings.append(b.over("kvc::cache_update", ring, *operands))
    out = b.attend(b.x, *rings)
    last = b.instructions[-1]
    row_lengths = Ref(slot) if attended else None
    b.instructions[-1] = replace(last, arguments=(*last.arguments[:-2], row_lengths, 0))
    whole = b.program(out)
    return with_run(whole, advances=adds(SEQ, 1))


@in_each_way
def test_rings_may_have_row_lengths(way):
    verify_program(way(counted()), "x", thorough=True)
    wants(way(counted(lengths=False)), "its row lengths are not those of the method")
    wants(way(counted(attended=False)), "its row lengths are not those of the method")


@in_each_way
def test_a_ring_s_rows_are_the_cursor_s(way):
    cursor = replace(WHOLE.cursors[0], rows=2)
    two = TensorType(I64, (2,))
    whole = with_state(WHOLE, 0, type=two)
    whole = replace(whole, cursors=(cursor,))
    graph = whole.methods[0].graph
    values = [replace(v, type=two) if v.type == ONE else v for v in graph.values]
    whole = with_run(whole, graph=replace(graph, values=tuple(values)))
    wants(way(whole), "are not those of its cursor|do not agree|rows|batch")


@in_each_way
@pytest.mark.parametrize("rows", [None, 1])
def test_a_cursor_of_the_session_will_do(way, rows):
    b = Builder(SYMBOLS)
    x, start, end = b.scratch(ROWS), b.value(ONE, START), b.value(ONE, END)
    rings = [b.value(RING, StateSlot(i)) for i in (0, 1)]
    keys, values = (
        b.over("kvc::cache_update", ring, Ref(x), Ref(start), 2, "circular", None, 0)
        for ring in rings
    )
    settings = [None, True, WINDOW - 1, *[None] * 5, "circular", *[None] * 3, 0]
    operands = [Ref(x), Ref(keys), Ref(values), Ref(end), *settings]
    out = b.step("kvc::attention", operands, b.scratch(ROWS))
    made = b.method("run", {"x": x}, [out], advances=adds(SEQ))
    cursor = Cursor("at", CursorKind.SESSION, None, rows, None)
    whole = replace(WHOLE, states=WHOLE.states[1:], cursors=(cursor,), methods=(made,))
    verify_program(way(whole), "x", thorough=True)
