"""Random modules with aliases of their buffers, in bundles and in eager."""

from collections import Counter

import pytest
from daily import RARELY, only
from random_aliases import Differs, check

SHARE = 4  # modules a test


@only(block=range(4))
@pytest.mark.parametrize("block", range(12))
def test_random_aliases_are_the_state(block, tmp_path):
    found = Counter()
    for seed in range(block * SHARE, (block + 1) * SHARE):
        check(seed, tmp_path, found)
    assert found["right"] == SHARE


def test_one_changed_element_is_noticed(tmp_path):
    noticed = 0
    for seed in range(8):
        try:
            check(seed, tmp_path, Counter(), corrupt=True)
        except Differs:
            noticed += 1
    assert noticed >= 6  # others write it anew before they show it


@RARELY
@pytest.mark.parametrize("block", range(40))
def test_many_random_aliases_are_the_state(block, tmp_path):
    found = Counter()
    for seed in range(block * 100, (block + 1) * 100):
        check(seed, tmp_path, found)
    assert found["right"] >= 95
