"""Runs of pages, beside sets of numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvc.runtime.memory.intervals import (
    NONE,
    common,
    lengths,
    merged,
    one_run,
    rounded_out,
    union,
    units_of,
    without,
)

RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=6).map(
    lambda runs: merged([s for s, _ in runs], [s + n for s, n in runs])
)


def members(runs):
    return {i for start, end in runs.tolist() for i in range(start, end)}


def is_tidy(runs):
    edges = runs.reshape(-1)
    return bool((np.diff(edges) > 0).all())


@given(RUNS, RUNS)
def test_arithmetic_is_that_of_sets(a, b):
    assert members(common(a, b)) == members(a) & members(b)
    assert members(without(a, b)) == members(a) - members(b)
    assert members(union([a, b])) == members(a) | members(b)


@given(RUNS, RUNS)
def test_runs_neither_overlap_nor_touch(a, b):
    for runs in (a, common(a, b), without(a, b), union([a, b])):
        assert is_tidy(runs)


@given(RUNS)
def test_rounding_out_takes_every_unit_with_a_member(runs):
    units = {i // 4 for i in members(runs)}
    whole = rounded_out(runs, 4)
    assert members(whole) == {4 * u + i for u in units for i in range(4)}
    assert units_of(whole, 4).tolist() == sorted(units)


def test_an_empty_run_is_none():
    assert merged([3, 5], [3, 5]).tolist() == []
    assert union([]).tolist() == NONE.tolist() == []
    assert lengths(one_run(3, 8)).tolist() == [5]
