"""1 / x and 1 / sqrt(x) of integers of any size."""

import numpy as np
import pytest

from kvc.runtime.delegates.ethosu import functions
from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder

MOST = (1 << 31) - 1
NUMBERS = np.unique(
    np.concatenate(
        [
            np.arange(1, 300),
            *(np.array([1 << bit, (1 << bit) - 1]) for bit in range(1, 31)),
            np.random.default_rng(0).integers(1, MOST, 5000),
            [MOST],
        ]
    )
)


def computed(make):
    builder = GraphBuilder()
    x = builder.input(NUMBERS.shape, Element.INT32)
    graph = builder.graph([*make(builder, x)])
    return [one.astype(np.float64) for one in evaluate(graph, [NUMBERS])]


def test_an_inverse_has_14_bits_whatever_the_number():
    found, moved = computed(functions.inverse)
    exact = 2.0 ** (30 - moved) / NUMBERS
    assert (exact > 0.5).all()
    assert (exact <= 1).all()
    assert np.abs(found / 2.0**functions.INVERSE_BITS - exact).max() < 2.0**-14


def test_an_inverse_root_has_14_bits_whatever_the_number():
    found, half = computed(functions.inverse_root)
    exact = 2.0 ** (15 - half) / np.sqrt(NUMBERS)
    assert (exact > 0.7).all()
    assert (exact <= 1.4143).all()
    assert np.abs(found / 2.0**functions.ROOT_BITS - exact).max() < 2.0**-14


@pytest.mark.parametrize("make", [functions.inverse, functions.inverse_root])
def test_all_of_it_fits_into_32_bits(make):
    for found in computed(make):
        assert (found >= 0).all()
        assert (found < 1 << 23).all()
