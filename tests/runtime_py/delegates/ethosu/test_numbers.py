"""Scales as integers, and tables of functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvc.runtime.delegates.ethosu.functions import FUNCTIONS
from kvc.runtime.delegates.ethosu.numbers import multiplier_of, table_of
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


def test_a_scale_just_below_a_power_of_two_has_a_multiplier_of_31_bits():
    assert multiplier_of(np.nextafter(1.0, 0)) == (1 << 30, 30)


def test_a_scale_beyond_the_least_shift_is_refused():
    with pytest.raises(ScaleOutOfRange, match="integers of 32 bits"):
        multiplier_of(2.0**30)


def test_a_table_has_the_results_of_all_integers():
    found = table_of(FUNCTIONS["aten::relu"], GRID, GRID)
    assert found.dtype == np.int8
    assert found.tolist() == [3] * 131 + list(range(3, 128))


def test_what_a_function_makes_of_numbers_it_does_not_take_is_clipped():
    found = table_of(lambda x: 1 / x, GRID, GRID)
    assert (found[131], found[130]) == (127, -128)


def test_every_function_that_is_taken_is_there():
    assert FUNCTIONS.keys() == {*TAKEN}
