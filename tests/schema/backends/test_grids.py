"""Grids: which numbers integers stand for, and the bytes that say so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_programs import sample_program

from kvc.schema.backends.grids import (
    Grid,
    Stored,
    asymmetric,
    channels_rounded,
    read_grids,
    symmetric,
    write_grids,
)
from kvc.schema.calibration import Range
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, RangeUnbounded

GRAPH = sample_program().methods[0].graph
FLOATS = [i for i, v in enumerate(GRAPH.values) if v.type.dtype is DType.FLOAT32]
OTHERS = [i for i in range(len(GRAPH.values)) if i not in FLOATS]
NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)


@pytest.mark.parametrize(
    ("stored", "least", "most"),
    [
        (Stored.INT8, -128, 127),
        (Stored.UINT8, 0, 255),
        (Stored.INT16, -32768, 32767),
        (Stored.UINT16, 0, 65535),
    ],
)
def test_types_have_their_bounds(stored, least, most):
    assert (stored.least, stored.most) == (least, most)


def test_an_asymmetric_grid_covers_a_range_and_zero():
    grid = asymmetric(Range(-1.0, 3.0), Stored.INT8)
    assert grid == Grid(Stored.INT8, float(np.float32(4 / 255)), -64)
    assert grid.integers(np.float32([-1, 0, 3, 9, -9])).tolist() == [
        -128, -64, 127, 127, -128,
    ]  # fmt: skip


def test_a_range_above_zero_begins_at_zero():
    assert asymmetric(Range(2.0, 5.1), Stored.UINT8).zero == 0


def test_a_symmetric_grid_has_its_zero_in_the_middle():
    grid = symmetric(Range(-0.5, 2.54), Stored.INT8)
    assert grid == Grid(Stored.INT8, float(np.float32(2.54 / 127)), 0)


def test_halves_go_to_the_even_integer():
    assert Grid(Stored.INT16, 2.0).integers(np.float32([1, 3, -1])).tolist() == [
        0, 2, 0,
    ]  # fmt: skip


def test_a_range_of_zero_has_a_grid():
    assert asymmetric(Range(0.0, 0.0), Stored.INT8).scale == 1.0


@given(low=NUMBERS, high=NUMBERS, stored=st.sampled_from([*Stored]))
def test_what_lies_in_the_range_is_at_most_half_a_step_off(low, high, stored):
    low, high = sorted((low, high))
    grid = asymmetric(Range(low, high), stored)
    numbers = np.linspace(low, high, 9, dtype=np.float64).astype(np.float32)
    far = np.abs(grid.rounded(numbers) - numbers)
    # The zero is rounded, which moves the ends by half a step more.
    assert (far <= 1.01 * grid.scale).all()
    assert grid.rounded(np.float32([0])) == 0


@given(low=NUMBERS, high=NUMBERS, stored=st.sampled_from([*Stored]))
def test_rounding_twice_is_rounding_once(low, high, stored):
    low, high = sorted((low, high))
    grid = asymmetric(Range(low, high), stored)
    once = grid.rounded(np.linspace(low, high, 9).astype(np.float32))
    assert np.array_equal(grid.rounded(once), once)


@pytest.mark.parametrize("make", [symmetric, asymmetric])
def test_a_range_without_an_end_has_no_grid(make):
    with pytest.raises(RangeUnbounded, match="from -inf"):
        make(Range(-np.inf, 1.0), Stored.INT8)


def test_channels_have_scales_of_their_own():
    weight = np.float32([[1, -2.54], [0, 0], [127, 1]])
    whole, scale = channels_rounded(weight, 0)
    assert whole.tolist() == [[50, -127], [0, 0], [127, 1]]
    assert scale.tolist() == [np.float32(2.54 / 127), 1.0, 1.0]
    assert np.array_equal(channels_rounded(weight.T, 1)[0], whole.T)


def test_grids_are_read_as_they_were_written():
    grids = {
        v: Grid(Stored.UINT16, float(np.float32(0.1)), 7) for v in reversed(FLOATS)
    }
    assert read_grids(write_grids(grids), GRAPH, "x.kvc", "here") == grids


def test_equal_grids_are_equal_bytes():
    one, two = (Grid(Stored.INT8, 0.5, z) for z in (1, 2))
    a, b = FLOATS[:2]
    assert write_grids({a: one, b: two}) == write_grids({b: two, a: one})


GOOD = write_grids({FLOATS[0]: Grid(Stored.INT8, 0.5, 3)})


def entry(value=FLOATS[0], kind=0, scale=0.5, zero=3):
    dtype = [("v", "<u4"), ("k", "u1"), ("s", "<f4"), ("z", "<i4")]
    return np.array([(value, kind, scale, zero)], dtype).tobytes()


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (GOOD[:-1], "12 bytes of grids"),
        (GOOD * 2, f"value {FLOATS[0]} after value {FLOATS[0]}"),
        (GOOD * (len(GRAPH.values) + 1), "bytes of grids for"),
        (entry(value=10_000), "value 10000 of"),
        (entry(value=OTHERS[0]), f"value {OTHERS[0]} is int64"),
        (entry(kind=4), "integers of kind 4"),
        (entry(scale=0.0), "a scale of 0.0"),
        (entry(scale=-1.0), "a scale of -1.0"),
        (entry(scale=np.nan), "a scale of nan"),
        (entry(scale=np.inf), "a scale of inf"),
        (entry(zero=128), "a zero at 128"),
        (entry(kind=1, zero=-1), "a zero at -1"),
    ],
)
def test_wrong_bytes_are_refused(raw, what):
    assert entry() == GOOD
    with pytest.raises(BadProgram, match=what):
        read_grids(raw, GRAPH, "x.kvc", "here")
