"""Where positions lie in a ring."""

import pytest

from kvc.schema.rings import Window, slot_runs


@pytest.mark.parametrize(
    ("first", "count", "runs"),
    [
        (0, 5, [(0, 5)]),
        (0, 12, [(0, 12)]),
        (13, 5, [(1, 5)]),
        (10, 5, [(10, 2), (0, 3)]),
        (3, 0, []),
        (-2, 3, [(10, 2), (0, 1)]),
    ],
)
def test_positions_lie_in_runs_of_slots(first, count, runs):
    assert list(slot_runs(first, count, 12)) == runs


def test_a_call_leaves_the_window_of_its_first_query():
    assert Window(5).longest_call(12) == 8
    assert Window(12).longest_call(12) == 1
