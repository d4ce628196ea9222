"""Each check on the window of a ring, broken by itself."""

from dataclasses import replace

import pytest
from hand_built import F32, I64, SEQ
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
    with_steps,
)
from stateful_programs import Builder

from kvc.schema.codec import decode, encode
from kvc.schema.errors import BadProgram
from kvc.schema.model import (
    Alias,
    CursorKind,
    Instruction,
    Position,
    Ref,
    StateKind,
    StateSlot,
)
from kvc.schema.types import TensorType
from kvc.schema.verify import verify_program

WHOLE, _ = ring_program()
GRAPH = WHOLE.methods[0].graph


def wants(program, text):
    with pytest.raises(BadProgram, match=text):
        verify_program(program, "x", thorough=True)


def with_method(builder, inputs, out, *more):
    """Return the program with a method of its own."""
    made = builder.method("run", inputs, [out, *more], advance=SEQ)
    return replace(WHOLE, methods=(made,))


def begun():
    """Return a builder, x, the position, and the two rings."""
    b = Builder(SYMBOLS)
    slots = [b.value(kind, StateSlot(i)) for i, kind in enumerate((ONE, RING, RING))]
    return b, b.scratch(ROWS), *slots


def write(b, cache, x, position, counts=None):
    operands = Ref(x), Ref(position), 2, "circular", counts
    return b.over("kvc::cache_update", cache, *operands)


def attend(b, q, keys, values, end, kind=ROWS, counts=None):
    settings = [None, True, WINDOW - 1, None, None, None, None, None, "circular"]
    operands = [Ref(q), Ref(keys), Ref(values), Ref(end)]
    settings += [None, None, counts]
    return b.step("kvc::attention", [*operands, *settings], b.scratch(kind))


def test_the_program_is_sound_and_comes_back():
    verify_program(WHOLE, "x", thorough=True)
    assert decode(encode(WHOLE), "x") == WHOLE


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": StateKind.LINEAR}, "a window of no ring at the position"),
        ({"at_position": False}, "a window of no ring at the position"),
        ({"window": 0}, "a window of 0 in a ring of 12 slots"),
        ({"window": SLOTS + 1}, "a window of 13 in a ring of 12 slots"),
        ({"window": WINDOW - 1}, "a window of 4, its queries see 5"),
        ({"window": WINDOW + 1}, "a window of 6, its queries see 5"),
    ],
)
def test_what_a_state_says_must_be_so(number, change, text):
    wants(with_state(WHOLE, number, **change), text)


def test_a_window_of_what_has_no_ring_is_refused():
    wants(with_state(WHOLE, 0, window=1), "a window of no ring")


@pytest.mark.parametrize("step", ["keys", "values"])
@pytest.mark.parametrize(
    ("place", "given", "text"),
    [
        (4, "linear", "not written along its slots"),
        (2, None, "not written at the position"),
    ],
)
def test_a_write_must_go_round_and_begin_at_the_position(step, place, given, text):
    wants(with_argument(WHOLE, step, place, given), text)


def test_a_write_must_go_along_the_slots():
    other = with_state(WHOLE, 1, axis=3, window=4)
    wants(other, "instruction 0: a ring is not written along its slots")


def test_a_write_must_not_begin_behind_the_position():
    b, x, position, keys, values = begun()
    end = b.step("aten::add.Scalar", (Ref(position), SEQ, 1), b.scratch(ONE))
    keys, values = write(b, keys, x, end), write(b, values, x, position)
    out = attend(b, x, keys, values, end)
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x}, out), "not written at the position")


def test_a_write_must_be_as_long_as_the_advance():
    wants(with_run(WHOLE, advance=1), "a write of seq positions, the call adds 1")


@pytest.mark.parametrize(
    ("place", "given", "text"),
    [
        (12, "linear", "read as linear"),
        (6, None, "read without a window"),
        (6, WINDOW, "a window of 5, its queries see 6"),
        (6, WINDOW - 2, "a window of 5, its queries see 4"),
        (3, Ref(GRAPH.instructions[0].arguments[2].value), "read up to the position"),
    ],
)
def test_a_reader_must_see_a_window_that_ends_with_the_call(place, given, text):
    wants(with_argument(WHOLE, "attention", place, given), text)


@pytest.mark.parametrize("added", [(1, 1), (SEQ, 2)])
def test_a_reader_must_end_where_the_call_does(added):
    changed = with_argument(WHOLE, "end", 1, added[0])
    changed = with_argument(changed, "end", 2, added[1])
    wants(changed, "not read up to the position behind the call")


def test_queries_must_be_the_tokens_of_the_call():
    b, x, position, keys, values = begun()
    one = TensorType(F32, (1, 2, 1, 4))
    q = b.scratch(one)
    keys, values = write(b, keys, x, position), write(b, values, x, position)
    end = b.step("aten::add.Scalar", (Ref(position), SEQ, 1), b.scratch(ONE))
    out = attend(b, q, keys, values, end, one)
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x, "q": q}, out), "1 queries over a ring, the call adds")


def test_a_ring_must_be_written_before_it_is_read():
    b, x, position, keys, values = begun()
    end = b.step("aten::add.Scalar", (Ref(position), SEQ, 1), b.scratch(ONE))
    out = attend(b, x, keys, values, end)
    write(b, keys, x, position)
    write(b, values, x, position)
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x}, out), "read before it is written")


def test_a_ring_is_no_query():
    b, x, position, keys, values = begun()
    keys, values = write(b, keys, x, position), write(b, values, x, position)
    end = b.step("aten::add.Scalar", (Ref(position), SEQ, 1), b.scratch(ONE))
    out = attend(b, keys, keys, values, end, RING)
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x}, out), "a ring is no cache here")


def test_slots_must_be_what_is_attended_over():
    b, x, position, keys, values = begun()
    rows = TensorType(F32, (1, SLOTS, SEQ, 4))
    q = b.scratch(rows)
    keys, values = write(b, keys, x, position), write(b, values, x, position)
    turned = TensorType(F32, (1, SLOTS, 2, 4))
    views = [
        b.step("aten::transpose.int", (Ref(part), 1, 2), b.value(turned, Alias(part)))
        for part in (keys, values)
    ]
    end = b.step("aten::add.Scalar", (Ref(position), SEQ, 1), b.scratch(ONE))
    out = attend(b, q, *views, end, rows)
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x, "q": q}, out), "slots are no positions here")


def test_a_ring_must_not_be_written_with_another_one():
    b, x, position, keys, values = begun()
    values = write(b, values, x, position)
    write(b, keys, values, position)
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x}, x), "written to another state")


def test_nothing_else_may_read_a_ring():
    b, x, position, keys, values = begun()
    keys, values = write(b, keys, x, position), write(b, values, x, position)
    out = b.step("aten::clone", (Ref(keys),), b.scratch(RING))
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x}, out), "aten::clone of a ring with a window")


def test_a_ring_must_not_be_handed_out():
    b, x, position, keys, values = begun()
    keys, values = write(b, keys, x, position), write(b, values, x, position)
    end = b.step("aten::add.Scalar", (Ref(position), SEQ, 1), b.scratch(ONE))
    out = attend(b, x, keys, values, end)
    b.over("aten::add.Scalar", position, SEQ, 1)
    wants(with_method(b, {"x": x}, out, keys), "hands a ring with a window out")


def test_what_advances_must_write_all_rings():
    b = Builder(SYMBOLS)
    x, position = b.scratch(ROWS), b.value(ONE, StateSlot(0))
    b.over("aten::add.Scalar", position, SEQ, 1)
    skip = b.method("skip", {"x": x}, [x], advance=SEQ)
    whole = replace(WHOLE, methods=(*WHOLE.methods, skip))
    wants(whole, r"does not write the rings \[1, 2\]")


def test_a_position_that_a_session_fills_will_do():
    """The place of the first token, or those of all: both are followed."""
    for kind in (ONE, TensorType(ONE.dtype, (SEQ,))):
        b = Builder(SYMBOLS)
        x, at = b.scratch(ROWS), b.scratch(kind)
        caches = [b.value(RING, StateSlot(i)) for i in (0, 1)]
        first, last, step = at, at, SEQ
        if kind is not ONE:
            first, last = (
                b.step(
                    "aten::slice.Tensor", (Ref(at), 0, *ends), b.value(ONE, Alias(at))
                )
                for ends in ((0, 1, 1), (-1, None, 1))
            )
            step = 1
        keys, values = (write(b, cache, x, first) for cache in caches)
        end = b.step("aten::add.Scalar", (Ref(last), step, 1), b.scratch(ONE))
        out = attend(b, x, keys, values, end)
        made = b.method("run", {"x": x, "at": at}, [out], advance=SEQ)
        tree = WHOLE.methods[0].input_tree
        whole = replace(
            WHOLE,
            states=WHOLE.states[1:],
            position=Position(CursorKind.INPUT, None, "at", None),
            methods=(replace(made, input_tree=tree),),
        )
        verify_program(whole, "x", thorough=True)
        steps = [
            replace(s, arguments=(s.arguments[0], 2, 1))
            if s.op == "aten::add.Scalar"
            else s
            for s in whole.methods[0].graph.instructions
        ]
        wants(with_steps(whole, steps), "not read up to the position")


def counted(sum_of=(0, 1), attended=True, advance=SEQ):
    """Return a program that counts tokens by an input; its end is a sum of two."""
    b, x, position, keys, values = begun()
    counts = b.scratch(ONE)
    other = b.step("aten::clone", (Ref(x),), b.scratch(ROWS))
    keys, values = (write(b, c, other, position, Ref(counts)) for c in (keys, values))
    parts = [Ref((position, counts)[i]) for i in sum_of]
    end = b.step("aten::add.Tensor", (*parts, 1), b.scratch(ONE))
    out = attend(b, x, keys, values, end, counts=Ref(counts) if attended else None)
    b.over("aten::add.Tensor", position, Ref(counts), 1)
    inputs = {"x": x, "counts": counts}
    made = b.method("run", inputs, [out], advance=advance, counts=1)
    return replace(WHOLE, methods=(made,))


@pytest.mark.parametrize("sum_of", [(0, 1), (1, 0)])
def test_rows_that_count_are_read_up_to_what_counts(sum_of):
    verify_program(counted(sum_of), "x", thorough=True)


@pytest.mark.parametrize("sum_of", [(0, 0), (1, 1)])
def test_rows_that_count_are_not_read_up_to_anything_else(sum_of):
    wants(counted(sum_of), "not read up to the position")


def test_queries_count_as_the_call_does():
    wants(counted(attended=False), "queries over a ring count in another way")


def of_rows(position_rows):
    """Return a program with rings of four rows, more than the position has or not."""
    kinds = {
        "rows": TensorType(F32, (4, 2, SEQ, 4)),
        "ring": TensorType(F32, (4, 2, SLOTS, 4)),
        "position": TensorType(I64, (position_rows,)),
    }
    b = Builder(SYMBOLS)
    x = b.scratch(kinds["rows"])
    position = b.value(kinds["position"], StateSlot(0))
    rings = [b.value(kinds["ring"], StateSlot(i)) for i in (1, 2)]
    each = 4 // position_rows
    apart = TensorType(I64, (position_rows, 1))
    wide = TensorType(I64, (position_rows, each))
    column = b.over("aten::unsqueeze", position, 1, kind=apart)
    grid = b.over("aten::expand", column, wide.dims, kind=wide)
    start = b.step("aten::reshape", (Ref(grid), (4,)), b.scratch(TensorType(I64, (4,))))
    keys, values = (write(b, ring, x, start) for ring in rings)
    four = TensorType(I64, (4,))
    end = b.step("aten::add.Scalar", (Ref(start), SEQ, 1), b.scratch(four))
    out = attend(b, x, keys, values, end, kinds["rows"])
    b.over("aten::add.Scalar", position, SEQ, 1)
    made = b.method("run", {"x": x}, [out], advance=SEQ)
    states = [replace(WHOLE.states[0], type=kinds["position"])]
    states += [replace(state, type=kinds["ring"]) for state in WHOLE.states[1:]]
    return replace(WHOLE, methods=(made,), states=tuple(states))


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_may_have_one_position_or_each_its_own(rows):
    verify_program(of_rows(rows), "x", thorough=True)


def test_rows_do_not_share_some_positions():
    wants(of_rows(2), "a ring's rows are not those of the position")


def test_the_operators_are_still_there():
    """The table of `ring_programs` names the instructions by their order."""
    ops = [step.op for step in GRAPH.instructions]
    assert all(isinstance(step, Instruction) for step in GRAPH.instructions)
    assert ops == [
        "kvc::cache_update", "kvc::cache_update", "aten::add.Scalar",
        "kvc::attention", "aten::add.Scalar",
    ]  # fmt: skip
