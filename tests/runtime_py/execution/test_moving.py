"""A mover changes the addresses of operands in states, and of no others."""

import numpy as np
import pytest

from kvc.runtime.execution.moving import Mover


def test_a_move_that_is_interrupted_is_done_again():
    held = [np.array([1, 2, 3], np.uint64), np.array([4, 5], np.uint64)]

    class Interrupted(np.ndarray):
        """Raises at the first write."""

        left = 1

        def __setitem__(self, where, content):
            if Interrupted.left:
                Interrupted.left = 0
                raise KeyboardInterrupt
            super().__setitem__(where, content)

    states = np.array([0]), np.array([0]), np.array([7], np.uint64)
    moved = [(held[0], *states), (held[1].view(Interrupted), *states)]
    mover, old, new = Mover(moved), object(), object()
    with pytest.raises(KeyboardInterrupt):
        mover.move(old, np.array([100], np.uint64))
    mover.move(old, np.array([100], np.uint64))
    Interrupted.left = 1
    with pytest.raises(KeyboardInterrupt):
        mover.move(new, np.array([200], np.uint64))
    mover.move(old, np.array([100], np.uint64))  # not where it was half moved to
    assert [one[0] for one in held] == [107, 107]
    mover.move(new, np.array([200], np.uint64))
    assert [one.tolist() for one in held] == [[207, 2, 3], [207, 5]]
