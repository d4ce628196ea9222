import pytest

from kvc.schema.backends.operands import Operand
from kvc.schema.backends.xnnpack import why_not
from kvc.schema.backends.xnnpack_layout import changed_dims
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, TensorType, add_dims

SEQ, BATCH = Affine(0, (("seq", 1),)), Affine(0, (("batch", 1),))
TWICE = Affine(0, (("seq", 2),))


def kind(*dims):
    return TensorType(DType.FLOAT32, dims)


def reason(op, before, *arguments, after):
    given = (Operand(kind(*before), constant=False), *arguments)
    return why_not(op, given, [kind(*dims) for dims in after])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, SEQ, 64), (1, SEQ, 4, 16)),
        ((1, SEQ, 4, 16), (1, SEQ, 64)),
        ((BATCH, SEQ, 64), (BATCH, SEQ, 4, 16)),
        ((1, SEQ, 64), (SEQ, 64)),
        ((SEQ, 64), (1, SEQ, 1, 64)),
        ((BATCH, SEQ), (Affine(0, (("batch", 1), ("seq", 1))),)),
        ((TWICE, 3), (2, SEQ, 3)),
        ((2, 3), (6,)),
        ((), (1, 1)),
    ],
)
def test_a_reshape_with_one_size_to_work_out_is_taken(before, after):
    assert reason("aten::view", before, after, after=[after]) == ""
    assert reason("aten::reshape", before, after, after=[after]) == ""


def test_a_reshape_with_two_sizes_to_work_out_is_left():
    before, after = (BATCH, 3, SEQ, 2), (SEQ, 6, BATCH)
    assert "to be worked out" in reason("aten::view", before, after, after=[after])


@pytest.mark.parametrize(
    ("before", "after", "middle"),
    [
        ((1, SEQ, 64), (1, SEQ, 4, 16), (4, 16)),
        ((2, 2), (2, 2, 2), (2,)),
        ((2, 2, 2), (2, 2), ()),
        ((), (), ()),
        ((SEQ, 4), (4, SEQ), (4, SEQ)),
    ],
)
def test_the_dims_that_change_lie_between_those_that_stay(before, after, middle):
    assert changed_dims(before, after) == middle


MINUS_2 = add_dims(SEQ, -2)


@pytest.mark.parametrize(
    ("start", "end", "length"),
    [
        (0, 4, 4),
        (None, None, SEQ),
        (1, None, add_dims(SEQ, -1)),
        (-1, None, 1),
        (-3, -1, 2),
        (MINUS_2, SEQ, 2),
        (0, MINUS_2, MINUS_2),
    ],
)
def test_a_slice_from_either_end_of_an_axis_is_taken(start, end, length):
    after = [(2, length)]
    assert reason("aten::slice.Tensor", (2, SEQ), 1, start, end, 1, after=after) == ""


def test_a_slice_elsewhere_or_with_steps_is_left():
    left = reason("aten::slice.Tensor", (8,), 0, SEQ, add_dims(SEQ, 1), 1, after=[(1,)])
    assert "place seq of an axis of 8" in left
    left = reason("aten::slice.Tensor", (8,), 0, 0, 8, 2, after=[(4,)])
    assert "step 2" in left


def test_an_element_of_an_axis_is_taken_from_either_end():
    for index in (0, 3, -1, add_dims(SEQ, -1)):
        assert reason("aten::select.int", (SEQ, 2), 0, index, after=[(2,)]) == ""
    left = reason("aten::select.int", (TWICE, 2), 0, SEQ, after=[(2,)])
    assert "place seq of an axis of 2*seq" in left


def test_a_split_has_places_that_count_from_an_end():
    for sizes in ((2, 2), (2, 1, 1)):
        after = [(n, 2) for n in sizes]
        assert reason("aten::split_with_sizes", (4, 2), sizes, 0, after=after) == ""
    sizes = (1, SEQ, 3)
    whole = add_dims(SEQ, 4)
    after = [(n,) for n in sizes]
    assert reason("aten::split_with_sizes", (whole,), sizes, 0, after=after) == ""
    halves = (SEQ, SEQ)
    left = reason("aten::split_with_sizes", (TWICE,), halves, 0, after=[(SEQ,)] * 2)
    assert "place seq" in left


def test_an_axis_is_repeated_a_fixed_number_of_times():
    assert reason("aten::expand", (1, SEQ), (4, SEQ), after=[(4, SEQ)]) == ""
    assert reason("aten::expand", (SEQ,), (4, -1), after=[(4, SEQ)]) == ""
    left = reason("aten::expand", (1, 4), (SEQ, 4), after=[(SEQ, 4)])
    assert "repeating an axis seq times" in left
    assert reason("aten::expand", (SEQ,), (64, 64, -1), after=[(64, 64, SEQ)]) == ""
    left = reason("aten::expand", (SEQ,), (65, 64, -1), after=[(65, 64, SEQ)])
    assert "repeating each element 4160 times" in left
