"""Integers between integers, at steps that are rounded once."""

import random
from fractions import Fraction

import pytest
import torch

from kvc.compiler.decompose.evenly_spaced import SPACED

SPACE = SPACED[torch.ops.aten.linspace.default]


def rounded_once(first: int, last: int, steps: int) -> list[int]:
    """Compute exactly, and round each number to 64 bits once."""
    step = Fraction((last - first) / (steps - 1))
    rising = [float(first + step * i) for i in range(steps)]
    falling = [float(last - step * (steps - 1 - i)) for i in range(steps)]
    half = steps // 2
    return [int(number) for number in (*rising[:half], *falling[half:])]


@pytest.mark.parametrize("as_tensors", [False, True])
def test_integers_are_rounded_once(as_tensors):
    draw = random.Random(0)
    for _ in range(200):
        first, last = draw.uniform(-120, 120), draw.uniform(-120, 120)
        steps = draw.randint(2, 60)
        ends = [torch.tensor(x) if as_tensors else x for x in (first, last)]
        found = SPACE(*ends, steps, dtype=torch.int16)
        assert found.tolist() == rounded_once(int(first), int(last), steps)


def test_a_number_just_below_an_integer_stays_below():
    assert rounded_once(47, -19, 19)[9] == 13  # 14 where the product is rounded, too
    assert SPACE(47, -19, 19, dtype=torch.int64)[9] == 13
