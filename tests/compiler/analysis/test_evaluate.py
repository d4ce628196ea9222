"""Index arithmetic is computed where it can differ from what takes its place."""

from dataclasses import dataclass, replace

import pytest
from ir_samples import I64, method, node, program, value

from kvc.compiler.analysis.cursor_fields import CursorAdvance, CursorView, with_places
from kvc.compiler.analysis.evaluate import check_equal
from kvc.compiler.analysis.flat import flatten
from kvc.compiler.ir import Method, Node, Value
from kvc.schema.dtypes import DType
from kvc.schema.errors import PassFailed
from kvc.schema.graph import CursorField
from kvc.schema.types import Dim, Symbol, affine

SEQ, BATCH = affine(0, {"seq": 1}), affine(0, {"batch": 1})
SYMBOLS = (Symbol("batch", 1, 4), Symbol("seq", 1, 8))
ONE, ROWS, PLACES = (value(0, dim, dtype=I64) for dim in (1, BATCH, SEQ))
LENGTHS = value(1, BATCH, dtype=I64)


@dataclass(frozen=True)
class Known:
    """What a method is given, and what it adds."""

    start: Value
    lengths: Value | None = None
    tokens: Dim = SEQ
    rows: Dim | None = None
    places: bool = False


AT_ONE = Known(ONE)
AT_ROWS = Known(ROWS, rows=BATCH)
RAGGED = Known(ROWS, LENGTHS, rows=BATCH)
AT_PLACES = Known(PLACES, places=True)


def view_of(known: Known, *nodes: Node, blocks: tuple[Method, ...] = ()) -> CursorView:
    """Return a method of these nodes as a cursor sees it."""
    given = tuple(v for v in (known.start, known.lengths) if v is not None)
    made = method(*nodes, inputs=given, outputs=nodes[-1].outputs)
    named = replace(made, position=made.input_names[0])
    (flat,) = flatten(program(named, *blocks, symbols=SYMBOLS, states=()))
    flat = with_places(flat) if known.places else flat
    return CursorView(
        flat, known.start, CursorAdvance(known.tokens, known.lengths), known.rows
    )


def check(known: Known, field: CursorField, *nodes: Node) -> None:
    """Check the last value that nodes make of the start."""
    check_equal(nodes[-1].outputs[0], field, view_of(known, *nodes), SYMBOLS)


def plus(given: Value, number: object, to: Value, alpha: int = 1) -> Node:
    return node("aten::add.Scalar", given, number, alpha, to=to)


def summed(alpha: int) -> Node:
    return node("aten::add.Tensor", ROWS, LENGTHS, alpha, to=value(2, BATCH, dtype=I64))


def test_sums_that_are_the_end_are_taken():
    check(AT_ONE, CursorField.END, plus(ONE, SEQ, value(2, 1, dtype=I64)))
    check(AT_ROWS, CursorField.END, plus(ROWS, SEQ, value(2, BATCH, dtype=I64)))
    check(RAGGED, CursorField.END, summed(1))


@pytest.mark.parametrize(
    ("number", "alpha"), [(1, 1), (SEQ, 2), (affine(-1, {"seq": 1}), 1), (0, 1)]
)
def test_another_sum_is_not_the_end(number, alpha):
    step = plus(ONE, number, value(2, 1, dtype=I64), alpha)
    with pytest.raises(PassFailed, match=r"%2 is not END at"):
        check(AT_ONE, CursorField.END, step)


def test_where_rows_have_lengths_the_sum_is_theirs():
    with pytest.raises(PassFailed, match="%2 is not END"):
        check(RAGGED, CursorField.END, summed(2))
    with pytest.raises(PassFailed, match="%2 is not END"):
        check(RAGGED, CursorField.END, plus(ROWS, SEQ, value(2, BATCH, dtype=I64)))


def test_lengths_of_one_or_none_are_cast():
    given, cast = value(1, BATCH, dtype=DType.BOOL), value(2, BATCH, dtype=I64)
    known = Known(ROWS, given, tokens=1, rows=BATCH)
    step = node("aten::_to_copy", given, I64, to=cast)
    check(known, CursorField.LENGTHS, step)
    with pytest.raises(PassFailed, match="%2 is not START"):
        check(known, CursorField.START, step)


def test_rows_stand_apart():
    """The first row's place, given to all, is not each row's own."""
    first, wide = value(2, 1, dtype=I64), value(3, BATCH, dtype=I64)
    nodes = (
        node("aten::slice.Tensor", ROWS, 0, 0, 1, 1, to=first),
        node("aten::expand", first, (BATCH,), to=wide),
    )
    with pytest.raises(PassFailed, match="%3 is not START at 0"):
        check(AT_ROWS, CursorField.START, *nodes)
    check(Known(ROWS), CursorField.START, *nodes)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [("aten::select.int", (0, 0)), ("aten::slice.Tensor", (0, None, 1, 1))],
)
def test_the_first_place_is_the_start(op, arguments):
    dims = () if op == "aten::select.int" else (1,)
    step = node(op, PLACES, *arguments, to=value(2, *dims, dtype=I64))
    check(AT_PLACES, CursorField.START, step)
    check(AT_PLACES, CursorField.START, step, plus(step.outputs[0], 0, value(3, *dims)))


def test_the_last_place_is_the_start_of_one_token_only():
    """Sizes beside the least are tried."""
    last = value(2, dtype=I64)
    step = node("aten::select.int", PLACES, 0, -1, to=last)
    with pytest.raises(PassFailed, match=r"%2 is not START at 0, .*'seq': 8"):
        check(AT_PLACES, CursorField.START, step)
    check(AT_PLACES, CursorField.END, step, plus(last, 1, value(3, dtype=I64)))


def test_views_and_copies_are_followed():
    shapes = [(1, 1), (), (1,), (1, 1), (1, 1), (1, 1)]
    values = [value(2 + i, *dims, dtype=I64) for i, dims in enumerate(shapes)]
    nodes = (
        node("aten::unsqueeze", ONE, 0, to=values[0]),
        node("aten::view", values[0], (), to=values[1]),
        node("aten::reshape", values[1], (1,), to=values[2]),
        node("aten::expand", values[2], (1, 1), to=values[3]),
        node("aten::clone", values[3], to=values[4]),
        node("aten::copy", values[0], values[4], to=values[5]),
    )
    check(AT_ONE, CursorField.START, *nodes)
    squeezed = value(9, dtype=I64)
    check(
        AT_ONE,
        CursorField.START,
        *nodes,
        node("aten::squeeze.dims", values[5], (0, 1), to=squeezed),
    )


def test_a_value_of_a_block_is_what_the_code_around_it_lends():
    end, own, later = (value(i, 1, dtype=I64) for i in (2, 0, 1))
    block = method(plus(own, 0, later), inputs=(own,), outputs=(later,), name="b0")
    call = node("kvc::delegate", 0, (end,), (None,), to=value(3, 1, dtype=I64))
    blocks = (replace(block, block=0),)
    view = view_of(AT_ONE, plus(ONE, SEQ, end), call, blocks=blocks)
    here = view.method.here(later, 0)
    assert here is not None
    check_equal(here, CursorField.END, view, SYMBOLS)
    with pytest.raises(PassFailed, match="is not START") as caught:
        check_equal(here, CursorField.START, view, SYMBOLS)
    assert caught.value.method == "step"


def test_what_branches_make_is_computed_by_each():
    end, own, yes = (
        value(2, 1, dtype=I64),
        value(0, 1, dtype=I64),
        value(4, dtype=DType.BOOL),
    )
    one = method(plus(own, SEQ, end), inputs=(own,), outputs=(end,), name="b0")
    other = method(plus(own, 1, end), inputs=(own,), outputs=(end,), name="b1")
    asks = node("aten::lt.Scalar", ONE, 9, to=yes)
    result = value(3, 1, dtype=I64)
    for second, passes in ((one, True), (other, False)):
        call = node("kvc::cond", yes, 0, 1, (ONE,), (None,), to=result)
        blocks = replace(one, block=0), replace(second, name="b1", block=1)
        view = view_of(AT_ONE, asks, call, blocks=blocks)
        if passes:
            check_equal(result, CursorField.END, view, SYMBOLS)
        else:
            with pytest.raises(PassFailed, match="%3 is not END"):
                check_equal(result, CursorField.END, view, SYMBOLS)
