"""`Mover`: lets a bound frame run on the states of one session after another.

In: a frame that was bound to states of some sizes, at addresses that stand in for those
of sessions. Out: the same frame, whose native steps read and write the states of a
session, or of some of its rows. To move a frame takes microseconds, to bind one tens of
milliseconds.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.native import NativeCall

Addresses = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


class Mover:
    """The operands of a frame that lie in states, and where the frame points now."""

    def __init__(
        self, moved: Sequence[tuple[Addresses, Indices, Indices, Addresses]]
    ) -> None:
        """Take over the operands of each list of steps.

        Args:
            moved: for each list the addresses of all operands, which are written; the
                indices of those in states; the state of each, and its offset there.
        """
        self._moved = moved
        self._at: object = None

    def move(self, to: object, addresses: Addresses) -> None:
        """Let the frame run on states at other addresses.

        Args:
            to: what the states belong to; the same object means the same addresses.
            addresses: the address of each state, uint64 [states].
        """
        if to is self._at:
            return
        self._at = None  # until all have moved: an interrupt may strike at any point
        for held, indices, states, offsets in self._moved:
            held[indices] = addresses[states] + offsets
        self._at = to


def mover_of(
    steps: Sequence[object], beside: Sequence[Array], buffers: Sequence[Array]
) -> Mover | None:
    """Return a mover for a frame, None if something but native steps uses the states.

    Args:
        steps: the functions of the frame.
        beside: the inputs and outputs of the frame.
        buffers: the memory of each state, to which the frame was bound.
    """
    if not buffers:
        return Mover(())
    first = np.array([address_of(one) for one in buffers], np.uint64)
    ends = first + np.array([_reach(one) for one in buffers], np.uint64)
    order = np.argsort(first, kind="stable")

    def find(addresses: Addresses) -> tuple[Indices, Indices]:
        """Return the indices of addresses in states, and the states."""
        below = np.searchsorted(first[order], addresses, side="right").astype(int) - 1
        states = order[np.maximum(below, 0)]
        inside = (below >= 0) & (addresses < ends[states])
        return np.flatnonzero(inside), states[inside]

    moved: list[tuple[Addresses, Indices, Indices, Addresses]] = []
    fixed = [*beside]
    for step in steps:
        if not isinstance(step, NativeCall):
            return None
        for partition in step.partitions:
            fixed += partition.kept
            held = partition.steps.addresses()
            indices, states = find(held)
            moved.append((held, indices, states, held[indices] - first[states]))
    others = np.array([address_of(one) for one in fixed], np.uint64)
    return None if find(others)[0].size else Mover(moved)


def _reach(array: Array) -> int:
    """Return the distance from the first byte of an array to the end of its last."""
    if not array.size:
        return 0
    pairs = zip(array.shape, array.strides, strict=True)
    steps: int = sum((size - 1) * stride for size, stride in pairs)
    return steps + array.itemsize
