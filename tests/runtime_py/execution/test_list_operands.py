"""Where operands of bound lists may lie."""

import numpy as np
import pytest

from kvc.runtime.execution.list_operands import lies_in_order


@pytest.mark.parametrize(
    ("array", "layout", "fits"),
    [
        (np.zeros((4, 3, 2)), (0, 1, 2), True),
        (np.zeros((4, 3, 2))[:2], (0, 1, 2), True),  # rows one after the other
        (np.zeros((3, 4, 2)).transpose(1, 0, 2), (1, 0, 2), True),
        (np.zeros((3, 4, 2)).transpose(1, 0, 2)[:2], (1, 0, 2), False),
        (np.zeros((3, 1, 2)).transpose(1, 0, 2)[:1], (1, 0, 2), True),
        (np.zeros((4, 3, 2))[:, :2], (0, 1, 2), False),
        (np.zeros(()), (), True),
    ],
)
def test_states_with_gaps_are_found(array, layout, fits):
    assert lies_in_order(array, layout) == fits
