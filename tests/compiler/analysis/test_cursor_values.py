"""Cursor values: the text of the IR before and after, and what stays arithmetic."""

from dataclasses import replace

import pytest
from ir_samples import I64, method, node, program, value

from kvc.compiler.analysis.cursor_fields import (
    CursorAdvance,
    CursorView,
    input_of,
    start_of,
    with_places,
)
from kvc.compiler.analysis.cursor_values import use_cursors
from kvc.compiler.analysis.flat import FlatMethod, flatten
from kvc.compiler.analysis.index_sums import Along, IndexSum, IndexSums
from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.text import program_text
from kvc.schema.dtypes import DType
from kvc.schema.errors import PassFailed
from kvc.schema.model import Cursor, CursorKind
from kvc.schema.types import Dim, Symbol, affine

SEQ, BATCH = affine(0, {"seq": 1}), affine(0, {"batch": 1})
SYMBOLS = (Symbol("batch", 1, 4), Symbol("seq", 1, 8))
SESSION = Cursor("at", CursorKind.SESSION, None, None, None)
COUNTER = Cursor("count", CursorKind.STATE, 1, None, None)
X, OLD, NEW = value(0, 1, SEQ, 4), value(2, 1, 8, 4), value(9, 1, 8, 4)
AT = value(1, 1, dtype=I64)
OUT = value(10, 1, 1, SEQ, 4)


def write(
    start: Value | None, row_lengths: Value | None = None, to: Value = NEW
) -> Node:
    return node("kvc::cache_update", OLD, X, start, 1, "linear", row_lengths, 0, to=to)


def attend(end: Value, row_lengths: Value | None = None) -> Node:
    settings: list[Argument] = [None, True, *[None] * 6, "linear", *[None] * 2]
    return node("kvc::attention", X, NEW, NEW, end, *settings, row_lengths, 0, to=OUT)


def entry(
    *nodes: Node,
    at: Value = AT,
    more: tuple[tuple[Value, str], ...] = (),
    lengths: str = "",
    tokens: Dim | None = SEQ,
) -> Method:
    """Return a method that is given x and `at`, and writes the cache."""
    made = method(
        *nodes,
        inputs=(X, at, *(v for v, _ in more)),
        outputs=nodes[-1].outputs,
        state_in=((OLD, "cache"),),
        state_out=((NEW, "cache"),),
    )
    names = ("x", "at", *(name for _, name in more))
    advances = () if tokens is None else ((0, tokens, lengths),)
    return replace(made, input_names=names, position="at", advances=advances)


def counting(*nodes: Node) -> Method:
    """Return the same where a state counts, which is value 1 as the call begins."""
    made = entry(*nodes)
    return replace(
        made,
        inputs=(X,),
        input_names=("x",),
        position="",
        state_in=((OLD, "cache"), (AT, "count")),
    )


def declared(*methods: Method, cursor: Cursor = SESSION) -> Program:
    states = ("cache",) if cursor.state is None else ("cache", "count")
    made = program(*methods, symbols=SYMBOLS, states=states)
    return replace(made, cursors=(cursor,))


def use(program: Program, *places: str) -> Program:
    """Return the program with cursor values; `places`: who is given each token's."""

    def views(method: FlatMethod) -> tuple[CursorView, ...]:
        added = {
            n: CursorAdvance(t, input_of(method, name))
            for n, t, name in method.advances
        }
        return tuple(
            CursorView(
                method,
                start_of(method, cursor, program),
                added.get(number, CursorAdvance(None)),
                cursor.rows,
            )
            for number, cursor in enumerate(program.cursors)
        )

    flat = [with_places(m) if m.name in places else m for m in flatten(program)]
    return use_cursors(program, {method.name: views(method) for method in flat})


def before_and_after(program: Program, *places: str) -> tuple[str, str]:
    """Return the lines of the method's and blocks' text, without what is around."""
    texts = [program_text(program)]
    after = use(program, *places)
    assert use(after) == after  # nothing is left to do
    texts.append(program_text(after))
    one, two = (text[text.index("method ") :] for text in texts)
    return one, two


def operands_after(program: Program, *places: str) -> list[str]:
    """Return what each operand of cache operators is: a field, or "arithmetic"."""
    changed = use(program, *places).methods[0]
    fields = {v.id: slot.field.name for v, slot in changed.cursor_in}
    wanted = {"kvc::cache_update": (2, 5), "kvc::attention": (3, 15)}
    return [
        fields.get(given.id, "arithmetic")
        for step in changed.nodes
        for place in wanted.get(step.op, ())
        if isinstance(given := step.arguments[place], Value)
    ]


# What is said


def test_an_input_of_the_session_is_the_start():
    one, two = before_and_after(declared(entry(write(AT))))
    assert one == (
        "method step\n"
        "  %0 = input x: float32[1, seq, 4]\n"
        "  %1 = input at: int64[1] (position)\n"
        "  %2 = state cache\n"
        "  %9 = kvc::cache_update(%2, %0, %1, 1, 'linear', None, 0): float32[1, 8, 4]\n"
        "  state cache = %9\n"
        "  return %9\n"
    )
    assert two == (
        "method step\n"
        "  %0 = input x: float32[1, seq, 4]\n"
        "  %2 = state cache\n"
        "  %1 = cursor 0 start: int64[1]\n"
        "  %9 = kvc::cache_update(%2, %0, %1, 1, 'linear', None, 0): float32[1, 8, 4]\n"
        "  state cache = %9\n"
        "  return %9\n"
    )


def test_what_a_state_counts_is_the_start_and_the_end():
    end = value(3, 1, dtype=I64)
    add = node("aten::add.Scalar", AT, SEQ, 1, to=end)
    whole = declared(counting(write(AT), add, attend(end)), cursor=COUNTER)
    _, two = before_and_after(whole)
    assert two == (
        "method step\n"
        "  %0 = input x: float32[1, seq, 4]\n"
        "  %2 = state cache\n"
        "  %1 = state count\n"
        "  %11 = cursor 0 start: int64[1]\n"
        "  %12 = cursor 0 end: int64[1]\n"
        "  %9 = kvc::cache_update(%2, %0, %11, 1, 'linear', None, 0): "
        "float32[1, 8, 4]\n"
        "  %3 = aten::add.Scalar(%1, seq, 1): int64[1]\n"
        "  %10 = kvc::attention(%0, %9, %9, %12, None, True, None, None, None, None, "
        "None, None, 'linear', None, None, None, 0): float32[1, 1, seq, 4]\n"
        "  state cache = %9\n"
        "  return %10\n"
    )


@pytest.mark.parametrize(
    ("op", "arguments", "dims"),
    [
        ("aten::alias", (), (1,)),
        ("aten::clone", (), (1,)),
        ("aten::view", ((),), ()),
        ("aten::reshape", ((1,),), (1,)),
        ("aten::squeeze.dims", ((0,),), ()),
        ("aten::expand", ((3,),), (3,)),
    ],
)
def test_views_and_copies_say_the_same(op, arguments, dims):
    same = value(3, *dims, dtype=I64)
    step = node(op, AT, *arguments, to=same)
    assert operands_after(declared(entry(step, write(same)))) == ["START"]


def test_what_is_written_over_another_number_says_what_is_written():
    other, same = value(3, 1, dtype=I64), value(4, 1, dtype=I64)
    copy = node("aten::copy", other, AT, to=same)
    made = entry(copy, write(same), more=((other, "other"),))
    assert operands_after(declared(made)) == ["START"]


def test_a_field_is_given_once_for_each_type():
    same, other = value(3, 1, dtype=I64), value(4, dtype=I64)
    last = value(11, 1, 8, 4)
    nodes = (
        node("aten::clone", AT, to=same),
        node("aten::view", AT, (), to=other),
        write(AT, to=value(12, 1, 8, 4)),
        write(same),
        write(other, to=last),
    )
    changed = use(declared(counting(*nodes), cursor=COUNTER))
    given = [(str(v.type), slot.field.name) for v, slot in changed.methods[0].cursor_in]
    assert given == [("int64[1]", "START"), ("int64[]", "START")]


# Places of tokens

PLACES = value(1, SEQ, dtype=I64)


@pytest.mark.parametrize(
    ("op", "arguments", "dims"),
    [
        ("aten::select.int", (0, 0), ()),
        ("aten::slice.Tensor", (0, 0, 1, 1), (1,)),
        ("aten::slice.Tensor", (0, None, 1, 1), (1,)),
    ],
)
def test_the_first_place_is_the_start(op, arguments, dims):
    first = value(3, *dims, dtype=I64)
    step = node(op, PLACES, *arguments, to=first)
    whole = declared(entry(step, write(first), at=PLACES))
    assert operands_after(whole, "step") == ["START"]
    assert "cursor 0 places: int64[seq]" in before_and_after(whole, "step")[1]


@pytest.mark.parametrize(
    ("op", "arguments", "dims"),
    [
        ("aten::select.int", (0, -1), ()),
        ("aten::slice.Tensor", (0, -1, None, 1), (1,)),
    ],
)
def test_behind_the_last_place_is_the_end(op, arguments, dims):
    last, same, end = (value(i, *dims, dtype=I64) for i in (3, 4, 5))
    nodes = (
        node(op, PLACES, *arguments, to=last),
        node("aten::clone", last, to=same),
        node("aten::add.Scalar", same, 1, 1, to=end),
        write(None),
        attend(end),
    )
    assert operands_after(declared(entry(*nodes, at=PLACES)), "step") == ["END"]


@pytest.mark.parametrize(
    ("op", "arguments", "dims"),
    [
        ("aten::select.int", (0, -1), ()),  # the last is no start
        ("aten::select.int", (0, 1), ()),
        ("aten::slice.Tensor", (0, 1, 2, 1), (1,)),
        ("aten::view", ((-1,),), (SEQ,)),
    ],
)
def test_another_place_is_no_start(op, arguments, dims):
    place = value(3, *dims, dtype=I64)
    step = node(op, PLACES, *arguments, to=place)
    whole = declared(entry(step, write(place), at=PLACES))
    assert operands_after(whole, "step") == ["arithmetic"]


# Row lengths

ROWS = value(1, BATCH, dtype=I64)
LENGTHS = value(4, BATCH, dtype=I64)
OF_ROWS = replace(SESSION, rows=BATCH)


@pytest.mark.parametrize("turned", [False, True])
def test_row_lengths_are_lengths_and_lead_to_the_end(turned):
    end = value(5, BATCH, dtype=I64)
    pair = (LENGTHS, ROWS) if turned else (ROWS, LENGTHS)
    add = node("aten::add.Tensor", *pair, 1, to=end)
    nodes = write(ROWS, LENGTHS), add, attend(end, LENGTHS)
    made = entry(
        *nodes, at=ROWS, more=((LENGTHS, "row_lengths"),), lengths="row_lengths"
    )
    whole = declared(made, cursor=OF_ROWS)
    assert operands_after(whole) == ["START", "LENGTHS", "END", "LENGTHS"]
    two = before_and_after(whole)[1]
    assert "  %4 = input row_lengths: int64[batch]\n" in two
    assert "cursor 0 lengths: int64[batch]\n" in two


def test_rows_that_take_field_or_not_have_lengths_of_one_or_none():
    given, cast = value(4, BATCH, dtype=DType.BOOL), value(5, BATCH, dtype=I64)
    nodes = node("aten::_to_copy", given, I64, to=cast), write(ROWS, cast)
    more = ((given, "row_lengths"),)
    made = entry(*nodes, at=ROWS, more=more, lengths="row_lengths", tokens=1)
    assert operands_after(declared(made, cursor=OF_ROWS)) == ["START", "LENGTHS"]


def test_where_rows_have_lengths_all_tokens_are_not_the_end():
    end = value(5, BATCH, dtype=I64)
    add = node("aten::add.Scalar", ROWS, SEQ, 1, to=end)
    nodes = write(ROWS, LENGTHS), add, attend(end, LENGTHS)
    made = entry(
        *nodes, at=ROWS, more=((LENGTHS, "row_lengths"),), lengths="row_lengths"
    )
    found = operands_after(declared(made, cursor=OF_ROWS))
    assert found == ["START", "LENGTHS", "arithmetic", "LENGTHS"]


# What is not proven


def test_what_has_another_shape_than_a_cursor_is_no_field_of_it():
    wide = value(3, 1, 1, dtype=I64)
    step = node("aten::unsqueeze", AT, 0, to=wide)
    assert operands_after(declared(entry(step, write(wide)))) == ["arithmetic"]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("aten::add.Scalar", (1, 1)),
        ("aten::add.Scalar", (affine(1, {"seq": 1}), 1)),
        ("aten::add.Scalar", (SEQ, 2)),
        ("aten::mul.Scalar", (2,)),
        ("aten::add.Tensor", (AT, 1)),
        ("aten::cumsum", (0,)),
    ],
)
def test_other_arithmetic_stays_what_it_is(op, arguments):
    end = value(3, 1, dtype=I64)
    step = node(op, AT, *arguments, to=end)
    whole = declared(counting(write(None), step, attend(end)), cursor=COUNTER)
    assert use(whole) == whole


def test_what_adds_nothing_has_no_end():
    end = value(3, 1, dtype=I64)
    step = node("aten::add.Scalar", AT, SEQ, 1, to=end)
    made = replace(counting(step, attend(end)), advances=())
    whole = declared(made, cursor=COUNTER)
    assert use(whole) == whole


def test_one_row_for_all_is_not_each_row_s_own():
    first, wide = value(3, 1, dtype=I64), value(4, BATCH, dtype=I64)
    nodes = (
        node("aten::slice.Tensor", ROWS, 0, 0, 1, 1, to=first),
        node("aten::expand", first, (BATCH,), to=wide),
        write(wide),
    )
    whole = declared(entry(*nodes, at=ROWS), cursor=OF_ROWS)
    assert operands_after(whole) == ["arithmetic"]


def test_other_readers_of_the_input_read_the_cursor():
    out = value(3, 1, dtype=I64)
    mul = node("aten::mul.Scalar", AT, 2, to=out)
    _, two = before_and_after(declared(entry(mul, write(AT))))
    assert "%1 = cursor 0 start: int64[1]\n  %3 = aten::mul.Scalar(%1, 2)" in two


# Blocks


def branch(number: int, *nodes: Node, at: Value = AT) -> Method:
    made = method(*nodes, inputs=(X, at, OLD), outputs=(NEW,), name=f"b{number}")
    return replace(made, block=number)


def asking(pred: Value, *operands: Value) -> Node:
    return node("kvc::cond", pred, 0, 1, operands, (None,), to=NEW)


YES = value(5, dtype=DType.BOOL)


def test_blocks_are_lent_what_they_use():
    keep = branch(1, node("aten::clone", OLD, to=NEW))
    made = entry(asking(YES, X, AT, OLD), more=((YES, "yes"),))
    whole = declared(made, branch(0, write(AT)), keep)
    one, two = before_and_after(whole)
    assert "kvc::cond(%5, 0, 1, [%0, %1, %2], [None])" in one
    assert two == (
        "method step\n"
        "  %0 = input x: float32[1, seq, 4]\n"
        "  %5 = input yes: bool[]\n"
        "  %2 = state cache\n"
        "  %1 = cursor 0 start: int64[1]\n"
        "  %9 = kvc::cond(%5, 0, 1, [%0, %1, %2, %1], [None]): float32[1, 8, 4]\n"
        "  state cache = %9\n"
        "  return %9\n"
        "block 0 b0\n"
        "  %0 = input x0: float32[1, seq, 4]\n"
        "  %1 = input x1: int64[1]\n"
        "  %2 = input x2: float32[1, 8, 4]\n"
        "  %10 = input %10: int64[1]\n"
        "  %9 = kvc::cache_update(%2, %0, %10, 1, 'linear', None, 0): "
        "float32[1, 8, 4]\n"
        "  return %9\n"
        "block 1 b1\n"
        "  %0 = input x0: float32[1, seq, 4]\n"
        "  %1 = input x1: int64[1]\n"
        "  %2 = input x2: float32[1, 8, 4]\n"
        "  %10 = input %10: int64[1]\n"
        "  %9 = aten::clone(%2): float32[1, 8, 4]\n"
        "  return %9\n"
    )


def test_blocks_within_blocks_are_lent_it_through_both():
    inner = node("kvc::cond", YES, 1, 2, (X, AT, OLD), (None,), to=NEW)
    outer = method(inner, inputs=(X, AT, OLD, YES), outputs=(NEW,), name="outer")
    call = node("kvc::delegate", 0, (X, AT, OLD, YES), (None,), to=NEW)
    keep = branch(2, node("aten::clone", OLD, to=NEW))
    made = entry(call, more=((YES, "yes"),))
    whole = declared(made, replace(outer, block=0), branch(1, write(AT)), keep)
    _, two = before_and_after(whole)
    assert "kvc::delegate(0, [%0, %1, %2, %5, %1], [None])" in two
    assert "kvc::cond(%5, 1, 2, [%0, %1, %2, %10], [None])" in two
    assert "kvc::cache_update(%2, %0, %10, 1, 'linear', None, 0)" in two


def test_arithmetic_in_a_block_is_followed_from_its_operands():
    end = value(6, 1, dtype=I64)
    add = node("aten::add.Scalar", AT, SEQ, 1, to=end)
    held = method(attend(end), inputs=(X, end, NEW), outputs=(OUT,), name="b0")
    call = node("kvc::delegate", 0, (X, end, NEW), (None,), to=OUT)
    made = entry(write(AT), add, call)
    _, two = before_and_after(declared(made, replace(held, block=0)))
    assert "%11 = cursor 0 end: int64[1]" in two
    assert "kvc::delegate(0, [%0, %6, %9, %11], [None])" in two


def test_what_changes_from_turn_to_turn_is_not_followed():
    """The first operands of a loop are others in the next turn."""
    again = value(7, dtype=DType.BOOL)
    test = method(
        node("aten::lt.Scalar", AT, 9, to=again),
        inputs=(AT, OLD, X),
        outputs=(again,),
        name="test",
    )
    more = value(6, 1, dtype=I64)
    body = method(
        write(AT),
        node("aten::add.Scalar", AT, SEQ, 1, to=more),
        inputs=(AT, OLD, X),
        outputs=(more, NEW),
        name="body",
    )
    call = node(
        "kvc::while",
        0,
        1,
        2,
        (AT, OLD, X),
        (None, None),
        to=(value(8, 1, dtype=I64), NEW),
    )
    blocks = replace(test, block=0), replace(body, block=1)
    whole = declared(counting(call), *blocks, cursor=COUNTER)
    assert use(whole) == whole


# The proof


def test_a_wrong_replacement_is_caught(monkeypatch: pytest.MonkeyPatch):
    """A form that does not say the same is found by computing both."""
    start = IndexSum((AT,), 0, Along.ALIKE)
    monkeypatch.setattr(IndexSums, "of", lambda sums, value: start)
    wrong = value(3, 1, dtype=I64)
    step = node("aten::add.Scalar", AT, 1, 1, to=wrong)
    whole = declared(entry(step, write(wrong), tokens=SEQ))
    with pytest.raises(PassFailed, match="%3 is not START at 0") as caught:
        use(whole)
    assert (caught.value.method, caught.value.node) == ("step", "%3")


def test_each_cursor_has_its_own_values():
    """A second cursor finds what is at it, and leaves the first one's values alone."""
    other, later = value(3, 1, dtype=I64), value(11, 1, 8, 4)
    nodes = write(AT), write(other, to=later)
    made = entry(*nodes, more=((other, "there"),))
    made = replace(made, advances=((0, SEQ, ""), (1, SEQ, "")))
    there = replace(SESSION, name="there")
    whole = replace(declared(made), cursors=(SESSION, there))
    both = use(whole)
    given = [(v.id, slot.cursor) for v, slot in both.methods[0].cursor_in]
    assert given == [(1, 0), (3, 1)]
    assert both.methods[0].input_names == ("x",)
