"""Steps from shape to shape, carried out on numpy's arrays."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvc.runtime.delegates.xnnpack.reshaping import (
    Fuse,
    Insert,
    Split,
    Step,
    Whole,
    apply_step,
    reshape_steps,
)
from kvc.schema.types import Affine, evaluate

A, B = Affine(0, (("a", 1),)), Affine(0, (("b", 1),))
SIZES = {"a": 5, "b": 7}


def carried_out(shape: tuple[int, ...], step: Step) -> tuple[int, ...]:
    """Return the shape that the library works out, from numbers alone."""
    match step:
        case Whole(sizes):
            return _filled(sizes, math.prod(shape))
        case Fuse(axis, count):
            fused = math.prod(shape[axis : axis + count])
            return (*shape[:axis], fused, *shape[axis + count :])
        case Split(axis, parts):
            return (*shape[:axis], *_filled(parts, shape[axis]), *shape[axis + 1 :])
        case Insert(axes):
            made = list(shape)
            for axis in axes:
                made.insert(axis, 1)
            return tuple(made)


def _filled(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    known = math.prod(size for size in sizes if size)
    assert count % known == 0
    assert sizes.count(0) <= 1
    return tuple(size or count // known for size in sizes)


DIMS = st.lists(st.sampled_from([1, 2, 3, A, B]), max_size=6)


@given(DIMS, st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 5))
def test_steps_lead_to_the_shape_for_any_sizes(dims, joined, place):
    before = tuple(dims)
    after: list[object] = []
    for dim, join in zip(dims, joined, strict=False):
        if join and after and isinstance(after[-1], int) and isinstance(dim, int):
            after[-1] *= dim
        else:
            after.append(dim)
    if len(after) < 6:
        after.insert(min(place, len(after)), 1)
    steps = reshape_steps(before, tuple(after))
    assert steps is not None
    shape = np.shape(np.empty([evaluate(dim, SIZES) for dim in before]))
    for step in steps:
        shape = carried_out(shape, step)
        assert len(shape) <= 6
    assert shape == tuple(evaluate(dim, SIZES) for dim in after)


def test_dims_are_made_fewer_before_they_are_made_more():
    steps = reshape_steps((A, 6, B, 2, 2, 3), (A, 3, 2, B, 4, 3))
    assert steps == (Fuse(3, 2), Split(1, (3, 2)))


@pytest.mark.parametrize(
    ("before", "after"),
    [((A, B), (B, A)), ((6, A, B), (A, B, 6)), ((2, A, B), (1, B, 2, A))],
)
def test_two_sizes_that_cannot_be_told_apart_are_refused(before, after):
    assert reshape_steps(before, after) is None


def test_one_size_is_worked_out_by_one_step():
    assert reshape_steps((A, 12), (3, A, 4)) == (Whole((3, 0, 4)),)


def test_multiples_of_a_size_are_known_as_such():
    twice = Affine(0, (("a", 2),))
    assert reshape_steps((twice, B), (2, A, B)) == (Split(0, (2, 0)),)


FLAT = Affine(0, (), ((("a", "b"), 1),))


def test_a_size_may_be_a_product_of_others():
    assert reshape_steps((A, B, 4), (FLAT, 4)) == (Whole((0, 4)),)
    assert reshape_steps((FLAT, A, 6), (FLAT, 3, A, 2)) is not None
    assert reshape_steps((A, B, A, 6), (FLAT, 2, A, 3)) is not None
    assert reshape_steps((FLAT, 4), (A, B, 4)) is None


def test_a_product_of_sizes_stands_as_a_number_on_the_way():
    fused = apply_step(Fuse(0, 2), (A, B, 3), (A, B, 3), SIZES)
    assert fused == (35, 3)
