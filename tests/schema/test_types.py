"""Sizes: sums of them, places in them, what a size found says of its symbols."""

import pytest

from kvc.schema.types import (
    add_dims,
    affine,
    count_from_front,
    evaluate,
    settle_symbol,
    symbols_of,
)

SEQ, PAST = affine(0, {"seq": 1}), affine(0, {"past": 1})
BOTH = affine(3, {"past": 1, "seq": 2})
SIZES = {"past": 5, "seq": 7}


@pytest.mark.parametrize("factor", [-2, -1, 0, 1, 3])
@pytest.mark.parametrize("b", [0, 4, SEQ, PAST, BOTH])
@pytest.mark.parametrize("a", [0, 4, SEQ, PAST, BOTH])
def test_a_sum_of_sizes_is_the_size_of_the_sum(a, b, factor):
    found = evaluate(add_dims(a, b, factor), SIZES)
    assert found == evaluate(a, SIZES) + factor * evaluate(b, SIZES)


def test_a_difference_of_equals_is_a_plain_number():
    assert add_dims(BOTH, BOTH, -1) == 0
    assert add_dims(BOTH, affine(1, {"past": 1, "seq": 2}), -1) == 2


@pytest.mark.parametrize(
    ("place", "size", "expected"),
    [
        (2, 8, 2),
        (-1, 8, 7),
        (-1, SEQ, affine(-1, {"seq": 1})),
        (0, SEQ, 0),
        (SEQ, 8, SEQ),
    ],
)
def test_a_negative_place_counts_from_the_back(place, size, expected):
    assert count_from_front(place, size) == expected


@pytest.mark.parametrize(
    ("dim", "size", "known", "expected"),
    [
        (BOTH, 22, {"past": 5}, {"past": 5, "seq": 7}),
        (BOTH, 22, {}, {}),
        (BOTH, 22, SIZES, SIZES),
        (SEQ, 4, {}, {"seq": 4}),
        (4, 4, {}, {}),
        (BOTH, 21, {"past": 5}, {"past": 5, "seq": 6}),
    ],
)
def test_a_size_settles_the_only_unknown_symbol(dim, size, known, expected):
    sizes = dict(known)
    settle_symbol(dim, size, sizes)
    assert sizes == expected


def test_symbols_are_named_once_and_in_order():
    assert list(symbols_of([SEQ, 3, BOTH])) == ["seq", "past"]
