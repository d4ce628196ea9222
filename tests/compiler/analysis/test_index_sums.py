"""Integers as sums: by which forms one is told, and what stays a value of its own."""

import pytest
from ir_samples import I64, node, value

from kvc.compiler.analysis.index_sums import Along, IndexSums, Joined
from kvc.compiler.ir import Argument, Node, Value
from kvc.schema.dtypes import DType
from kvc.schema.types import Dim, affine

SEQ, BATCH = affine(0, {"seq": 1}), affine(0, {"batch": 1})
ONE, ROWS, PLACES = (value(i, d, dtype=I64) for i, d in enumerate((1, BATCH, SEQ)))
FIRST = Value(PLACES.id, ONE.type)
Told = tuple[list[int], Dim, Along]
ALIKE, COUNTING, APART = Along


def told(*nodes: Node) -> Told:
    """Return the sum of what the last node makes."""
    makers = {made.id: step for step in nodes for made in step.outputs}
    found = IndexSums(makers, counting={PLACES.id: FIRST}).of(nodes[-1].outputs[0])
    return [addend.id for addend in found.addends], found.constant, found.along


def step(number: int, op: str, *arguments: Argument, dims: tuple[Dim, ...]) -> Node:
    return node(f"aten::{op}", *arguments, to=value(number, *dims, dtype=I64))


ARANGE = step(8, "arange.start_step", 2, affine(2, {"seq": 1}), 1, I64, dims=(SEQ,))
RANGE = ARANGE.outputs[0]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (step(9, "add.Scalar", ONE, 3, 1, dims=(1,)), ([0], 3, ALIKE)),
        (step(9, "add.Scalar", ROWS, SEQ, 1, dims=(BATCH,)), ([1], SEQ, APART)),
        (step(9, "sub.Scalar", ONE, 3, 1, dims=(1,)), ([0], -3, ALIKE)),
        (step(9, "add.Tensor", ONE, ROWS, 1, dims=(BATCH,)), ([0, 1], 0, APART)),
        (step(9, "add.Tensor", RANGE, ONE, 1, dims=(SEQ,)), ([0], 2, COUNTING)),
        (step(9, "expand", ONE, (BATCH,), dims=(BATCH,)), ([0], 0, ALIKE)),
        (step(9, "view", ROWS, (-1, 1), dims=(BATCH, 1)), ([1], 0, APART)),
        (step(9, "copy", ROWS, ONE, dims=(BATCH,)), ([0], 0, ALIKE)),
        (step(9, "select.int", PLACES, 0, 0, dims=()), ([2], 0, ALIKE)),
        (
            step(9, "select.int", PLACES, 0, -1, dims=()),
            ([2], affine(-1, {"seq": 1}), ALIKE),
        ),
        (step(9, "slice.Tensor", RANGE, 0, 1, None, 1, dims=(3,)), ([], 3, COUNTING)),
        (step(9, "slice.Tensor", PLACES, 0, None, 1, 1, dims=(1,)), ([2], 0, ALIKE)),
    ],
    ids=lambda one: one.op if isinstance(one, Node) else "",
)
def test_a_sum_is_told_by_its_form(made: Node, expected: Told) -> None:
    assert told(ARANGE, made) == expected


@pytest.mark.parametrize(
    "made",
    [
        step(9, "add.Scalar", ONE, 3, 2, dims=(1,)),
        step(9, "add.Tensor", ONE, ONE, 2, dims=(1,)),
        step(9, "add.Tensor", RANGE, PLACES, 1, dims=(SEQ,)),  # steps of two
        step(9, "add.Tensor", ROWS, RANGE, 1, dims=(SEQ,)),  # of rows and of tokens
        step(9, "mul.Scalar", ONE, 1, dims=(1,)),
        step(9, "cumsum", RANGE, 0, dims=(SEQ,)),
        step(9, "clamp", ONE, 0, None, dims=(1,)),
        step(9, "expand", PLACES, (BATCH, SEQ), dims=(BATCH, SEQ)),
        step(9, "select.int", ROWS, 0, 0, dims=()),  # the first row's alone
        step(9, "slice.Tensor", RANGE, 0, 0, None, 2, dims=(3,)),
        # of less than five, all are taken
        step(9, "slice.Tensor", PLACES, 0, -5, None, 1, dims=(4,)),
        step(9, "arange.start_step", 0, SEQ, 2, I64, dims=(SEQ,)),
        step(9, "_to_copy", value(3, 1, dtype=DType.FLOAT32), I64, dims=(1,)),
    ],
    ids=lambda one: one.op,
)
def test_anything_else_is_a_value_of_its_own(made: Node) -> None:
    addends, constant, along = told(ARANGE, made)
    assert (addends, constant) == ([9], 0)
    assert along is not COUNTING


def test_a_cast_that_may_lose_something_is_no_sum_of_what_was_before() -> None:
    narrow = value(5, 1, dtype=DType.INT32)
    there = node("aten::_to_copy", ONE, DType.INT32, to=narrow)
    back = step(9, "_to_copy", narrow, I64, dims=(1,))
    assert told(there, back) == ([5], 0, ALIKE)


def test_branches_say_what_all_of_them_say_or_that_one_adds_more() -> None:
    shift = step(6, "add.Scalar", ONE, 1, 1, dims=(1,))
    again = step(7, "add.Scalar", ONE, 1, 1, dims=(1,))
    makers = {6: shift, 7: again}
    alike, unlike = value(10, 1, dtype=I64), value(11, 1, dtype=I64)
    other, more = value(12, 1, dtype=I64), value(13, 1, dtype=I64)
    joins = {
        10: Joined(10, alike, (shift.outputs[0], again.outputs[0]), more),
        11: Joined(11, unlike, (shift.outputs[0], ONE), more),
        12: Joined(12, other, (shift.outputs[0], ROWS), more),
    }
    sums = IndexSums(makers, joins)
    assert (sums.of(alike).addends, sums.of(alike).constant) == ((ONE,), 1)
    assert (sums.of(unlike).addends, sums.of(unlike).constant) == ((ONE, more), 0)
    assert sums.of(other).addends == (other,)
