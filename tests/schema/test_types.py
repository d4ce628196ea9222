"""Sizes: sums of them, places in them, what a size found says of its symbols."""

import pytest

from kvc.schema.types import (
    Symbol,
    add_dims,
    affine,
    bounds,
    count_from_front,
    evaluate,
    floor_divide,
    multiply_dims,
    only_symbol,
    settle_symbol,
    symbols_of,
)

SEQ, PAST = affine(0, {"seq": 1}), affine(0, {"past": 1})
BOTH = affine(3, {"past": 1, "seq": 2})
FLAT = affine(0, {}, {("past", "seq"): 1})
MIXED = affine(-4, {"seq": -1}, {("past", "seq"): 2})
SIZES = {"past": 5, "seq": 7}


@pytest.mark.parametrize("factor", [-2, -1, 0, 1, 3])
@pytest.mark.parametrize("b", [0, 4, SEQ, PAST, BOTH, FLAT, MIXED])
@pytest.mark.parametrize("a", [0, 4, SEQ, PAST, BOTH, FLAT, MIXED])
def test_a_sum_of_sizes_is_the_size_of_the_sum(a, b, factor):
    found = evaluate(add_dims(a, b, factor), SIZES)
    assert found == evaluate(a, SIZES) + factor * evaluate(b, SIZES)


def test_a_difference_of_equals_is_a_plain_number():
    assert add_dims(BOTH, BOTH, -1) == 0
    assert add_dims(BOTH, affine(1, {"past": 1, "seq": 2}), -1) == 2
    assert add_dims(MIXED, add_dims(MIXED, 3), -1) == -3


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (BOTH, "past+2*seq+3"),
        (FLAT, "past*seq"),
        (MIXED, "2*past*seq-1*seq-4"),
    ],
)
def test_a_size_reads_as_it_is_computed(dim, text):
    assert str(dim) == text
    assert evaluate(dim, SIZES) == eval(text, dict(SIZES))


SIGNED = affine(3, {"b": 2, "c": -1}, {("a", "b"): -3, ("a", "c"): 1, ("b", "c"): 2})


@pytest.mark.parametrize(
    "dim",
    [
        affine(-5, {"a": 2, "b": -1}),
        affine(0, {}, {("a", "b"): 1}),
        affine(-1, {"b": -1}, {("a", "b"): 1}),
        SIGNED,
        affine(0, {"a": 1}, {("a", "b", "c"): -2}),
    ],
)
def test_bounds_are_those_of_all_sizes(dim):
    ends = {"a": (0, 3), "b": (1, 4), "c": (2, 5)}
    symbols = {name: Symbol(name, *pair) for name, pair in ends.items()}
    values = [
        evaluate(dim, {"a": a, "b": b, "c": c})
        for a in range(4)
        for b in range(1, 5)
        for c in range(2, 6)
    ]
    assert bounds(dim, symbols) == (min(values), max(values))


A, B, C = (affine(0, {name: 1}) for name in "abc")
HALF, THIRD = floor_divide(A, 2), floor_divide(add_dims(add_dims(A, B, 2), 1), 3)
DIVIDED = [
    HALF,
    THIRD,
    add_dims(A, HALF, -1),
    add_dims(add_dims(B, THIRD, -2), -7),
    floor_divide(add_dims(THIRD, HALF, -1), 4),
    floor_divide(affine(-3, {"a": -5, "c": 3}), 7),
    floor_divide(floor_divide(add_dims(A, -1), 2), 3),
    multiply_dims(HALF, add_dims(THIRD, C, -1)),
]
ENDS = {"a": (0, 6), "b": (1, 4), "c": (2, 5)}
ALL_SIZES = [
    {"a": a, "b": b, "c": c} for a in range(7) for b in range(1, 5) for c in range(2, 6)
]


@pytest.mark.parametrize("by", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("dim", [*DIVIDED, SIGNED, 7, -7])
def test_a_quotient_is_rounded_down(dim, by):
    quotient = floor_divide(dim, by)
    for sizes in ALL_SIZES:
        assert evaluate(quotient, sizes) == evaluate(dim, sizes) // by
        assert evaluate(quotient, sizes) == eval(str(quotient), dict(sizes))


@pytest.mark.parametrize("dim", DIVIDED)
def test_bounds_hold_for_quotients(dim):
    symbols = {name: Symbol(name, *pair) for name, pair in ENDS.items()}
    values = [evaluate(dim, sizes) for sizes in ALL_SIZES]
    low, high = bounds(dim, symbols)
    assert low <= min(values)
    assert max(values) <= high


def test_what_is_left_after_a_half_is_never_negative():
    symbols = {"a": Symbol("a", 1, 17)}
    assert bounds(add_dims(A, HALF, -1), symbols) == (1, 9)
    assert bounds(add_dims(A, HALF, -2), symbols) == (0, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (floor_divide(add_dims(A, 2), 2), add_dims(HALF, 1)),
        (floor_divide(affine(0, {"a": 2}), 4), HALF),
        (floor_divide(HALF, 3), floor_divide(A, 6)),
        (floor_divide(affine(0, {"a": 5}), 2), add_dims(HALF, A, 2)),
        (floor_divide(affine(0, {"a": 6, "b": 4}), 2), affine(0, {"a": 3, "b": 2})),
    ],
)
def test_equal_quotients_look_alike(one, other):
    assert one == other


def test_a_product_of_sizes_distributes_and_has_no_powers():
    made = multiply_dims(add_dims(A, 2), add_dims(HALF, -3))
    assert evaluate(made, {"a": 5}) == 7 * -1
    assert multiply_dims(3, A) == affine(0, {"a": 3})
    assert multiply_dims(A, add_dims(A, 1)) is None
    assert multiply_dims(HALF, HALF) is None


def test_a_size_found_settles_nothing_in_a_quotient():
    sizes = {}
    settle_symbol(HALF, 3, sizes)
    assert sizes == {}
    assert only_symbol(HALF) is None


@pytest.mark.parametrize(
    ("dim", "name"),
    [
        (SEQ, "seq"), (4, None), (BOTH, None), (FLAT, None),
        (affine(0, {"seq": 2}), None), (affine(1, {"seq": 1}), None),
        (affine(0, {"seq": 1}, {("past", "seq"): 1}), None),
    ],
)  # fmt: skip
def test_only_a_symbol_alone_is_one(dim, name):
    assert only_symbol(dim) == name


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
        (FLAT, 35, {"past": 5}, {"past": 5, "seq": 7}),
        (FLAT, 35, {}, {}),
        (FLAT, 0, {"past": 0}, {"past": 0}),
        (MIXED, 59, {"past": 5}, {"past": 5, "seq": 7}),
    ],
)
def test_a_size_settles_the_only_unknown_symbol(dim, size, known, expected):
    sizes = dict(known)
    settle_symbol(dim, size, sizes)
    assert sizes == expected


def test_symbols_are_named_once_and_in_order():
    assert list(symbols_of([SEQ, 3, BOTH])) == ["seq", "past"]
    assert list(symbols_of([MIXED])) == ["seq", "past"]
