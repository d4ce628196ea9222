# ruff: noqa: E501  a table reads best with one line a case
from dataclasses import replace

import pytest
import torch
from golden import assert_golden
from interpreter import interpret
from ir_samples import F32, method, node, program, value

from kvc.compiler.ir import State
from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.cache_writes import AppendToCaches
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Symbol, TensorType

SYMBOLS = (Symbol("past", 0, 8), Symbol("seq", 1, 8))


def length(past, seq=0, more=0):
    terms = (("past", past), ("seq", seq))
    return Affine(more, tuple(term for term in terms if term[1]))


PAST, NEW = value(0, 1, length(1), 4), value(1, 1, length(0, 1), 4)
EMPTY, ROW = value(2, 1, 0, 4), value(3, 1, 1, 4)
LONGER, LONGEST = value(4, 1, length(1, 1), 4), value(5, 1, length(1, 1, 1), 4)
JOIN = node("aten::cat", (PAST, NEW), 1, to=LONGER)
AGAIN = node("aten::cat", (LONGER, ROW), -2, to=LONGEST)
SUM = node("aten::neg", LONGER, to=value(6, *LONGER.type.dims))


def growing(*nodes, becomes=LONGER, outputs=(), grows=1):
    """Return a program with a state of changing length that a method lengthens."""
    made = method(
        *nodes,
        inputs=(NEW, ROW, EMPTY),
        state_in=((PAST, "past"),),
        state_out=((becomes, "past"),),
        outputs=outputs,
    )
    held = State("past", TensorType(F32, (1, 16, 4)), None, grows)
    return replace(program(made, symbols=SYMBOLS), states=(held,))


def called(*nodes, outputs=(LONGER,), past=PAST, input_out=()):
    """Return a program with a caller's input of changing length."""
    made = method(*nodes, inputs=(past, NEW, ROW), outputs=outputs, input_out=input_out)
    return program(made, symbols=SYMBOLS)


def ops_after(before):
    verify(before)
    after = AppendToCaches().run(before)
    verify(after)
    return [n.op for n in after.methods[0].nodes]


def test_before_and_after_are_as_agreed():
    parts = node("aten::cat", (EMPTY, PAST), 1, to=value(7, *PAST.type.dims))
    join = node("aten::cat", (parts.outputs[0], EMPTY, NEW, ROW), 1, to=LONGEST)
    before = growing(parts, join, becomes=LONGEST)
    after = AppendToCaches().run(before)
    verify(after)
    text = f"# before\n{program_text(before)}\n# after\n{program_text(after)}"
    assert_golden("pass_append_to_caches", text)


def test_a_second_run_changes_nothing():
    after = AppendToCaches().run(growing(JOIN, AGAIN, becomes=LONGEST))
    assert program_text(AppendToCaches().run(after)) == program_text(after)


def test_what_is_appended_is_what_was_joined():
    before = growing(JOIN, AGAIN, becomes=LONGEST, outputs=(LONGEST,))
    after = AppendToCaches().run(before)
    sizes = {"past": 3, "seq": 2}
    given = [torch.rand(1, 2, 4), torch.rand(1, 1, 4), torch.rand(1, 0, 4)]
    states = {"past": torch.rand(1, 16, 4)}
    expected = interpret(before.methods[0], given, states, sizes)
    got = interpret(after.methods[0], given, states, sizes)
    assert torch.equal(got[0][0], expected[0][0])
    assert torch.equal(got[1]["past"], expected[1]["past"])
    assert torch.equal(got[1]["past"][:, :3], states["past"][:, :3])


def test_a_state_that_is_lengthened_is_appended_to():
    assert ops_after(growing(JOIN, SUM)) == ["kvc::append", "aten::neg"]


def test_two_joins_in_a_row_are_two_appends():
    both = growing(JOIN, AGAIN, becomes=LONGEST)
    assert ops_after(both) == ["kvc::append", "kvc::append"]


def test_an_input_whose_longer_version_is_returned_is_appended_to():
    assert ops_after(called(JOIN)) == ["kvc::append"]


def test_an_input_is_appended_to_once():
    other = node("aten::cat", (PAST, NEW), 1, to=value(8, *LONGER.type.dims))
    twice = called(JOIN, other, outputs=(LONGER, other.outputs[0]))
    assert ops_after(twice) == ["kvc::append", "aten::cat"]


SHORT = value(0, 1, 2, 4)
TURNED = node("aten::cat", (NEW, PAST), 1, to=LONGER)
WIDE = value(9, 1, length(1), 4, dtype=DType.FLOAT64)


@pytest.mark.parametrize(
    "before",
    [
        growing(TURNED),
        growing(JOIN, SUM, becomes=PAST),
        called(JOIN, SUM, outputs=SUM.outputs),
        called(JOIN, input_out=((PAST, "x0"),)),
        called(node("aten::cat", (SHORT, ROW), 1, to=value(4, 1, 3, 4)), past=SHORT, outputs=(value(4, 1, 3, 4),)),
        called(node("aten::cat", (PAST, PAST), 2, to=value(4, 1, length(1), 8)), outputs=(value(4, 1, length(1), 8),)),
        called(node("aten::cat", (PAST, WIDE), 1, to=value(4, 1, length(2), 4, dtype=DType.FLOAT64)), outputs=(value(4, 1, length(2), 4, dtype=DType.FLOAT64),)),
    ],
    ids=["after", "not_kept", "not_returned", "written", "fixed", "other_axis", "other_dtype"],
)  # fmt: skip
def test_other_joins_stay(before):
    after = AppendToCaches().run(before)
    assert [n.op for n in after.methods[0].nodes] == [
        n.op for n in before.methods[0].nodes
    ]


def test_a_join_that_is_read_between_two_stays():
    between = growing(JOIN, SUM, AGAIN, becomes=LONGEST)
    assert ops_after(between) == ["aten::cat", "aten::neg", "aten::cat"]


def test_an_empty_part_of_another_dtype_stays():
    empty = value(7, 1, 0, 4, dtype=DType.FLOAT64)
    wide = value(8, *ROW.type.dims, dtype=DType.FLOAT64)
    before = called(node("aten::cat", (ROW, empty), 1, to=wide), outputs=(wide,))
    made = replace(before.methods[0], inputs=(PAST, NEW, ROW, empty))
    made = replace(made, input_names=("x0", "x1", "x3", "x7"))
    assert ops_after(replace(before, methods=(made,))) == ["aten::cat"]
