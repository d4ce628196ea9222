from dataclasses import replace

import pytest
from ir_samples import I64, method, node, program, value

from kvc.compiler.analysis.index_sums import NonNegative
from kvc.compiler.ir import State
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Symbol, TensorType

SEQ = Affine(0, (("seq", 1),))
COUNTER, GIVEN, MADE = value(0, dtype=I64), value(1, dtype=I64), value(2, dtype=I64)
KIND = TensorType(I64, ())


def counting(*nodes, new=MADE, initial=None, name="step"):
    """Return a program with a state that starts as zero and becomes `new`."""
    made = method(
        *nodes,
        inputs=(GIVEN,),
        state_in=((COUNTER, "n"),),
        state_out=((new, "n"),),
        name=name,
    )
    empty = program(made, symbols=(Symbol("seq", 0, 8),))
    return replace(empty, states=(State("n", KIND, initial),))


def is_non_negative(before, which=COUNTER):
    return NonNegative(before).holds(before.methods[0], which)


@pytest.mark.parametrize(
    "made",
    [
        node("aten::add.Scalar", COUNTER, SEQ, 1, to=MADE),
        node("aten::add.Scalar", COUNTER, 3, 1, to=MADE),
        node("aten::clone", COUNTER, to=MADE),
        node("aten::mul.Scalar", COUNTER, 2, to=MADE),
        node("aten::remainder.Scalar", GIVEN, 8, to=MADE),
        node("aten::div.Scalar_mode", COUNTER, 2, "floor", to=MADE),
        node("aten::clamp", GIVEN, 0, None, to=MADE),
        node("aten::full", (), 7, I64, to=MADE),
        node("aten::maximum", COUNTER, COUNTER, to=MADE),
    ],
)
def test_a_state_that_stays_natural_is_natural(made):
    assert is_non_negative(counting(made))


@pytest.mark.parametrize(
    "made",
    [
        node("aten::add.Scalar", COUNTER, -1, 1, to=MADE),
        node("aten::add.Scalar", COUNTER, Affine(-1, SEQ.terms), 1, to=MADE),
        node("aten::add.Scalar", COUNTER, 1, -1, to=MADE),
        node("aten::add.Tensor", COUNTER, GIVEN, 1, to=MADE),
        node("aten::neg", COUNTER, to=MADE),
        node("aten::remainder.Scalar", GIVEN, -8, to=MADE),
        node("aten::full", (), -1, I64, to=MADE),
    ],
)
def test_a_state_that_may_fall_below_zero_is_not(made):
    assert not is_non_negative(counting(made))


def test_one_method_that_takes_away_is_enough():
    add = node("aten::add.Scalar", COUNTER, 1, 1, to=MADE)
    back = node("aten::sub.Scalar", COUNTER, 1, 1, to=MADE)
    both = counting(add)
    other = counting(back, name="other")
    assert not is_non_negative(replace(both, methods=both.methods + other.methods))


def test_a_state_that_starts_as_something_is_not():
    add = node("aten::add.Scalar", COUNTER, 1, 1, to=MADE)
    assert not is_non_negative(counting(add, initial="n.initial"))


def test_what_a_caller_gives_is_not():
    assert not is_non_negative(counting(new=GIVEN), GIVEN)


def test_the_position_that_a_session_gives_is():
    before = counting(new=COUNTER)
    filled = replace(before.methods[0], position="x1")
    assert is_non_negative(replace(before, methods=(filled,)), GIVEN)


def test_a_cast_to_fewer_bits_is_not():
    narrow = value(2, dtype=DType.INT32)
    cast = node("aten::_to_copy", COUNTER, DType.INT32, to=narrow)
    assert not is_non_negative(counting(cast, new=COUNTER), narrow)


def test_a_state_that_another_one_may_pull_below_zero_is_not():
    other, less = value(3, dtype=I64), value(4, dtype=I64)
    made = method(
        node("aten::add.Tensor", COUNTER, other, 1, to=MADE),
        node("aten::add.Scalar", other, -1, 1, to=less),
        state_in=((COUNTER, "n"), (other, "m")),
        state_out=((MADE, "n"), (less, "m")),
    )
    states = (State("n", KIND, None), State("m", KIND, None))
    assert not is_non_negative(replace(program(made), states=states))
