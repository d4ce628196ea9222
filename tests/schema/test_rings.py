"""Where positions lie in a ring."""

import itertools

import pytest

from kvc.schema.rings import Window, can_keep, oldest, slot_runs


@pytest.mark.parametrize(
    ("keep", "first", "count", "runs"),
    [
        (0, 0, 5, [(0, 5)]),
        (0, 0, 12, [(0, 12)]),
        (0, 13, 5, [(1, 5)]),
        (0, 10, 5, [(10, 2), (0, 3)]),
        (0, 3, 0, []),
        (0, -2, 3, [(10, 2), (0, 1)]),
        (4, 0, 12, [(0, 12)]),
        (4, 3, 10, [(3, 9), (4, 1)]),
        (4, 12, 3, [(4, 3)]),
        (4, 18, 4, [(10, 2), (4, 2)]),
    ],
)
def test_positions_lie_in_runs_of_slots(keep, first, count, runs):
    assert list(slot_runs(first, count, 12, keep)) == runs


def test_the_oldest_position_that_goes_round_is_the_one_not_written_over():
    for slots, keep, length in itertools.product(range(1, 7), range(3), range(20)):
        if keep >= slots:
            continue
        there: dict[int, int] = {}
        for position in range(length):
            ((slot, _),) = slot_runs(position, 1, slots, keep)
            there[slot] = position
        kept = set(range(min(keep, length)))
        assert kept <= set(there.values())
        found = set(there.values()) - kept
        assert found == set(range(oldest(length, slots, keep), length))


def test_a_call_leaves_the_window_of_its_first_query():
    assert Window(5).longest_call(12) == 8
    assert Window(12).longest_call(12) == 1
    assert Window(5, 4).longest_call(12) == 4


@pytest.mark.parametrize(
    ("keep", "mode", "can"),
    [
        (0, "linear", True),
        (0, "circular", True),
        (7, "circular", True),
        (8, "circular", False),
        (-1, "circular", False),
        (1, "linear", False),
    ],
)
def test_a_ring_keeps_less_than_all(keep, mode, can):
    assert can_keep(keep, mode, 8) == can
