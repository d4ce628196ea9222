"""Scales as integers, and tables of functions."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.functions import FUNCTIONS
from kvc.runtime.delegates.ethosu.numbers import (
    LINES,
    multiplier_of,
    table_of,
    table_of_lines,
)
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder
from kvc.schema.backends.ethosu import FUNCTIONS as TAKEN
from kvc.schema.backends.grids import Grid, Stored
from kvc.schema.errors import ScaleOutOfRange

GRID = Grid(Stored.INT8, 0.0625, 3)


def test_a_scale_is_a_multiplier_and_a_shift():
    assert multiplier_of(1.0) == (1 << 30, 30)
    assert multiplier_of(0.75) == (3 << 29, 31)
    assert multiplier_of(2.0**-40) == (1 << 22, 62)


@given(st.floats(2.0**-31, 2.0**28))
def test_a_scale_is_exact_to_31_bits(scale):
    multiplier, shift = multiplier_of(scale)
    assert 1 << 30 <= multiplier < 1 << 31
    assert 2 <= shift <= 62
    assert abs(multiplier / 2**shift / scale - 1) < 2.0**-30


@given(st.floats(2.0**-45, 2.0**12))
def test_a_scale_of_48_bits_has_a_multiplier_of_15(scale):
    multiplier, shift = multiplier_of(scale, 15)
    assert 1 << 14 <= multiplier < 1 << 15
    assert 2 <= shift <= 62
    assert abs(multiplier / 2**shift / scale - 1) < 2.0**-14


def test_a_scale_just_below_a_power_of_two_has_a_multiplier_of_31_bits():
    assert multiplier_of(np.nextafter(1.0, 0)) == (1 << 30, 30)


def test_a_scale_beyond_the_least_shift_is_refused():
    with pytest.raises(ScaleOutOfRange, match="integers of 32 bits"):
        multiplier_of(2.0**30)


@pytest.mark.parametrize("scale", [-0.5, np.inf, np.nan])
def test_a_scale_that_no_multiplier_has_is_refused(scale: float):
    with pytest.raises(ScaleOutOfRange):
        multiplier_of(scale)


def test_a_table_has_the_results_of_all_integers():
    found = table_of(FUNCTIONS["aten::relu"], GRID, GRID)
    assert found.dtype == np.int8
    assert found.tolist() == [3] * 131 + list(range(3, 128))


def test_what_a_function_makes_of_numbers_it_does_not_take_is_clipped():
    found = table_of(lambda x: 1 / x, GRID, GRID)
    assert (found[131], found[130]) == (127, -128)


def test_a_table_for_int16_has_an_entry_every_128_integers():
    found = table_of_lines(lambda x: x, 0.5, 0.25)
    places = (np.arange(513) - 256) * LINES
    assert found.dtype == np.int16
    assert found.tolist() == np.clip(2 * places, -(1 << 15), (1 << 15) - 1).tolist()


def test_neighbours_in_a_table_are_less_than_16_bits_apart():
    found = table_of_lines(lambda x: np.where(x < 640, -1e9, 1e9), 1.0, 1.0)
    steps = np.diff(found.astype(np.int64))
    assert np.abs(steps).max() == (1 << 15) - 1
    assert (found[256], found[-1]) == (-(1 << 15), (1 << 15) - 1)


def test_every_function_that_is_taken_is_there():
    assert FUNCTIONS.keys() == {*TAKEN}


SMOOTH = {
    "aten::elu": (1.0, 1.0, 1.0),
    "aten::exp": (),
    "aten::gelu": ("none",),
    "aten::neg": (),
    "aten::sigmoid": (),
    "aten::silu": (),
    "aten::tanh": (),
}


@pytest.mark.parametrize("op", SMOOTH)
def test_all_int16_are_near_a_function_that_lies_on_lines(op: str):
    function = partial(apply, op)
    places = np.arange(-(1 << 15), 1 << 15)
    x_scale = 6 / (1 << 15)
    exact = function(places * x_scale)
    y_scale = 2 * np.abs(exact).max() / ((1 << 15) - 1)  # as the compiler has it
    builder = GraphBuilder()
    x = builder.input(places.shape, Element.INT16)
    looked_up = builder.table(x, table_of_lines(function, x_scale, y_scale))
    (found,) = evaluate(builder.graph([looked_up]), [places])
    assert np.abs(found / LINES * y_scale - exact).max() < 3 * y_scale


def apply(op: str, x: np.ndarray) -> np.ndarray:
    return FUNCTIONS[op](x, *SMOOTH[op])
