"""Reaches of activations: what they make of numbers from one end to another."""

import pytest
import torch
from torch.nn import functional

from kvc.runtime.delegates.qnn.ranges import gated

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("kind", [*ACTIVATIONS])
@pytest.mark.parametrize("most", [-4.0, -0.5, 0.0, 0.5, 1.0, 1.8, 2.5, 5.0, 7e16])
def test_an_activation_stays_within_its_reach(kind: str, most: float):
    made = ACTIVATIONS[kind](torch.linspace(-6, most, 2001, dtype=torch.float64))
    low, high = gated(kind, (-6.0, most))
    step = (high - low) / 65535
    assert low - step / 2 <= made.min() <= made.max() <= high + step / 2
