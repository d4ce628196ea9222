# ruff: noqa: E501  a table reads best with one line a case
from dataclasses import replace

import pytest
from golden import assert_golden
from ir_samples import I64, method, node, program, value

from kvc.compiler.ir import State
from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.cache_writes import RecognizeCacheWrites
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Symbol, TensorType

F32, I32 = DType.FLOAT32, DType.INT32
SEQ = Affine(0, (("seq", 1),))
SYMBOLS = (Symbol("seq", 1, 8),)
CACHE = (2, 8, 4)
OLD, NEW, ROWS = value(0, *CACHE), value(9, *CACHE), value(1, 2, SEQ, 4)
PLACE = value(2, dtype=I64)
COUNT, INDEX = value(3, SEQ, dtype=I64), value(4, SEQ, dtype=I64)
ARANGE = node("aten::arange.start_step", 0, SEQ, 1, I64, to=COUNT)
AHEAD = node("aten::add.Tensor", COUNT, PLACE, 1, to=INDEX)
COPY = node("aten::index_copy", OLD, 1, INDEX, ROWS, to=NEW)
PUT = node("aten::index_put", OLD, (None, INDEX), ROWS, False, to=NEW)


def written(*nodes, place_is="input", position="", start=PLACE, rows=ROWS, extra=()):
    """Return a program that writes a cache at a place: an input, or a state."""
    inputs = (rows, start) if place_is == "input" else (rows,)
    states = ((OLD, "k"),) if place_is == "input" else ((OLD, "k"), (start, "place"))
    made = method(
        *nodes,
        inputs=(*inputs, *extra),
        state_in=states,
        state_out=((NEW, "k"),),
        outputs=(NEW,),
    )
    cache = State("k", TensorType(F32, CACHE), None)
    counter = State("place", start.type, None)
    held = (cache,) if place_is == "input" else (cache, counter)
    empty = program(replace(made, position=position), symbols=SYMBOLS)
    return replace(empty, states=held)


def last_op(before):
    verify(before)
    after = RecognizeCacheWrites().run(before)
    verify(after)
    return after.methods[0].nodes[-1].op


def spellings():
    """Return a program with a write at each kind of start that is recognised."""
    second, third, fourth = (value(n, *CACHE) for n in (20, 21, 22))
    narrow, wide = value(23, dtype=I32), value(24, dtype=I64)
    further, shifted = value(25, SEQ, dtype=I64), value(26, SEQ, dtype=I64)
    row, one = value(27, 2, 1, 4), value(28, 1, dtype=I64)
    return written(
        ARANGE,
        AHEAD,
        COPY,
        node("aten::_to_copy", narrow, I64, to=wide),
        node("aten::add.Tensor", wide, COUNT, 1, to=further),
        node("aten::add.Scalar", further, 2, 1, to=shifted),
        node("aten::index_copy", NEW, 1, shifted, ROWS, to=second),
        node("aten::view", PLACE, (1,), to=one),
        node("aten::index_copy", second, -2, one, row, to=third),
        node("aten::index_copy", third, 1, value(29, SEQ, dtype=I64), ROWS, to=fourth),
        position="x29",
        extra=(narrow, row, value(29, SEQ, dtype=I64)),
    )


def test_before_and_after_are_as_agreed():
    before = spellings()
    after = RecognizeCacheWrites().run(before)
    text = f"# before\n{program_text(before)}\n# after\n{program_text(after)}"
    assert_golden("pass_recognize_cache_writes", text)


def test_a_second_run_changes_nothing():
    after = RecognizeCacheWrites().run(spellings())
    assert program_text(RecognizeCacheWrites().run(after)) == program_text(after)


@pytest.mark.parametrize(
    "nodes",
    [
        (ARANGE, AHEAD, PUT),
        (
            ARANGE,
            node("aten::clone", PLACE, to=value(5, dtype=I64)),
            node("aten::unsqueeze", value(5, dtype=I64), 0, to=value(6, 1, dtype=I64)),
            node("aten::add.Tensor", value(6, 1, dtype=I64), COUNT, 1, to=INDEX),
            PUT,
        ),
    ],
)
def test_index_put_at_a_state_that_only_grows_is_a_cache_write(nodes):
    assert last_op(written(*nodes, place_is="state")) == "kvc::cache_update"


def test_index_put_at_a_given_place_stays():
    assert last_op(written(ARANGE, AHEAD, PUT)) == "aten::index_put"


def test_index_put_at_a_position_that_the_session_fills_is_a_cache_write():
    before = written(ARANGE, AHEAD, PUT, position="x2")
    assert last_op(before) == "kvc::cache_update"


def test_index_put_behind_a_state_minus_one_stays():
    back = value(5, SEQ, dtype=I64)
    nodes = (
        ARANGE,
        node("aten::add.Tensor", COUNT, PLACE, 1, to=back),
        node("aten::add.Scalar", back, -1, 1, to=INDEX),
    )
    put = written(*nodes, PUT, place_is="state")
    assert last_op(put) == "aten::index_put"
    assert last_op(written(*nodes, COPY, place_is="state")) == "kvc::cache_update"


@pytest.mark.parametrize(
    "nodes",
    [
        # at places that never change
        (node("aten::arange.start_step", 2, Affine(2, SEQ.terms), 1, I64, to=INDEX), COPY),
        # in steps of two
        (node("aten::arange.start_step", 0, SEQ, 1, I64, to=COUNT), node("aten::add.Tensor", COUNT, COUNT, 1, to=INDEX), COPY),
        (node("aten::arange.start_step", 0, Affine(0, (("seq", 2),)), 2, I64, to=COUNT), AHEAD, COPY),
        # at twice the place
        (ARANGE, node("aten::add.Tensor", COUNT, PLACE, 2, to=INDEX), COPY),
        # at places that are given
        (node("aten::neg", COUNT, to=INDEX), COPY),
    ],
)  # fmt: skip
def test_other_places_stay_as_they_are(nodes):
    extra = () if any(COUNT in n.outputs for n in nodes) else (COUNT,)
    assert last_op(written(*nodes, extra=extra)) == "aten::index_copy"


def test_the_first_axis_stays():
    old, new, rows = value(0, 8, 4), value(9, 8, 4), value(1, SEQ, 4)
    copy = node("aten::index_copy", old, 0, INDEX, rows, to=new)
    before = program(
        method(ARANGE, AHEAD, copy, inputs=(old, rows, PLACE), outputs=(new,)),
        symbols=SYMBOLS,
    )
    assert last_op(before) == "aten::index_copy"


def test_values_that_broadcast_stay():
    row = value(1, 2, 1, 4)
    put = node("aten::index_put", OLD, (None, INDEX), row, False, to=NEW)
    before = written(ARANGE, AHEAD, put, position="x2", rows=row)
    assert last_op(before) == "aten::index_put"


def put_of_lean_values(cache, values):
    """Return a program that puts values into the last axis but one of a cache."""
    old, new, rows = value(0, *cache), value(9, *cache), value(1, *values)
    indices = (*(None,) * (len(cache) - 2), INDEX)
    put = node("aten::index_put", old, indices, rows, False, to=new)
    made = method(
        ARANGE,
        AHEAD,
        put,
        inputs=(rows, PLACE),
        state_in=((old, "k"),),
        state_out=((new, "k"),),
        outputs=(new,),
    )
    state = State("k", TensorType(F32, cache), None)
    empty = program(replace(made, position="x2"), symbols=SYMBOLS)
    return replace(empty, states=(state,))


@pytest.mark.parametrize(
    ("cache", "values"),
    [
        ((1, 8, 4), (SEQ, 4)),
        ((1, 2, 8, 4), (2, SEQ, 4)),
        ((1, 1, 8, 4), (SEQ, 4)),
        ((1, 1, 8, 4), (1, SEQ, 4)),
    ],
)
def test_values_get_back_the_leading_axes_of_size_1_that_they_lack(cache, values):
    before = put_of_lean_values(cache, values)
    verify(before)
    after = RecognizeCacheWrites().run(before)
    verify(after)
    *_, write = after.methods[0].nodes
    assert write.op == "kvc::cache_update"
    written = write.inputs[1]
    assert written.type.dims == (*cache[:-2], SEQ, 4)
    (view,) = [n for n in after.methods[0].nodes if written in n.outputs]
    assert (view.op, view.inputs[0].id) == ("aten::view", 1)


@pytest.mark.parametrize(
    ("cache", "values"),
    [
        ((1, 2, 8, 4), (SEQ, 4)),  # the same for all heads
        ((1, 2, 8, 4), (2, 1, 4)),  # the same at all places
        ((2, 8, 4), (SEQ, 4)),  # the same for all rows
        ((1, 8, 4), (4,)),
    ],
)
def test_lean_values_that_broadcast_stay(cache, values):
    assert last_op(put_of_lean_values(cache, values)) == "aten::index_put"


def test_adding_up_stays():
    put = node("aten::index_put", OLD, (None, INDEX), ROWS, True, to=NEW)
    assert last_op(written(ARANGE, AHEAD, put, position="x2")) == "aten::index_put"


def test_more_than_there_are_slots_stays():
    """Such a call raises either way, but `cache_update` says so when it is verified."""
    longer = replace(written(ARANGE, AHEAD, COPY), symbols=(Symbol("seq", 1, 9),))
    assert last_op(longer) == "aten::index_copy"


def test_a_position_for_each_row_is_not_taken_for_a_list_of_places():
    two, rows = value(2, 2, dtype=I64), value(1, 2, 2, 4)
    copy = node("aten::index_copy", OLD, 1, two, rows, to=NEW)
    before = written(copy, position="x2", start=two, rows=rows)
    assert last_op(before) == "aten::index_copy"
