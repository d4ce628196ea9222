"""Forms of sizes are found from samples."""

import pytest

from kvc.runtime.bound_lists.forms import Fitter, Form
from kvc.runtime.bound_lists.samples import boxes_of, samples_of
from kvc.schema.types import Symbol

BOX = ((2, 500), (16, 2048))
SAMPLES = list(samples_of(BOX, [True, True], [False, True]))


def fitted(function):
    return Fitter(SAMPLES).fit(tuple(function(*sample) for sample in SAMPLES))


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (lambda a, b: 7, Form(7)),
        (lambda a, b: a, Form(0, (((0,), 1),))),
        (lambda a, b: 3 * b - 5, Form(-5, (((1,), 3),))),
        (lambda a, b: a * b, Form(0, (((0, 1), 1),))),
        (lambda a, b: a * a * 4 + 1, Form(1, (((0, 0), 4),))),
        (lambda a, b: 2 * a + 3 * b, Form(0, (((0,), 2), ((1,), 3)))),
        (lambda a, b: -(1 << 63), Form(-(1 << 63))),
    ],
)
def test_a_form_is_found(function, form):
    assert fitted(function) == form


@pytest.mark.parametrize(
    "function",
    [lambda a, b: a // 2, lambda a, b: -(-a // 64) * 64, lambda a, b: a**5 + b],
)
def test_what_is_no_sum_of_products_has_no_form(function):
    assert fitted(function) is None


def test_samples_reach_the_greatest_sizes_and_do_not_repeat():
    assert (500, 2048) in SAMPLES
    assert len(set(SAMPLES)) == len(SAMPLES)


def test_small_sizes_and_buckets_have_boxes_of_their_own():
    symbols = (Symbol("seq", 0, 9), Symbol("rows", 1, 8, (1, 4, 8)))
    boxes = boxes_of(symbols, [True, True])
    assert boxes[:2] == [((0, 0), (1, 1)), ((0, 0), (4, 4))]
    assert ((2, 9), (8, 8)) in boxes
    assert boxes_of(symbols, [False, False]) == [((0, 9), (1, 8))]
