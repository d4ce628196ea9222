"""How many bytes of planned memory some tensors cover, while they come and go."""

from collections.abc import Iterable
from itertools import pairwise

from kvc.tools.executorch.contents import Tensor

Place = tuple[int, int]  # number of a buffer, and a byte of it


def place_of(tensor: Tensor) -> tuple[Place, Place]:
    """Return where a tensor with planned memory begins and ends."""
    assert tensor.memory is not None
    number, start = tensor.memory
    return (number, start), (number, start + tensor.nbytes)


class Covered:
    """How many bytes at least one of some spans covers.

    A segment tree over the places where spans begin and end: a change takes as many
    steps as the logarithm of their number.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        """Begin with no spans; all that come begin and end at some places."""
        ordered = sorted(set(places))
        self._index = {place: index for index, place in enumerate(ordered)}
        self._leaves = 1 << len(ordered).bit_length()
        self._counts = [0] * (2 * self._leaves)  # of spans, on whole nodes
        self._covered = [0] * (2 * self._leaves)
        self._nbytes = [0] * (2 * self._leaves)
        for index, (one, other) in enumerate(pairwise(ordered)):
            # No span goes from one buffer to another.
            apart = one[0] != other[0]
            self._nbytes[self._leaves + index] = 0 if apart else other[1] - one[1]
        for node in range(self._leaves - 1, 0, -1):
            self._nbytes[node] = self._nbytes[2 * node] + self._nbytes[2 * node + 1]

    @property
    def nbytes(self) -> int:
        """How many bytes are covered now."""
        return self._covered[1]

    def add(self, start: Place, end: Place, change: int) -> None:
        """Add a span, by a change of 1, or take it away again, by -1."""
        first = self._leaves + self._index[start]
        last = self._leaves + self._index[end]
        left, right = first, last
        while left < right:
            if left & 1:
                self._count(left, change)
                left += 1
            if right & 1:
                right -= 1
                self._count(right, change)
            left, right = left >> 1, right >> 1
        self._tell_parents(first)
        self._tell_parents(last - 1)

    def _count(self, node: int, change: int) -> None:
        self._counts[node] += change
        self._note(node)

    def _tell_parents(self, node: int) -> None:
        while node := node >> 1:
            self._note(node)

    def _note(self, node: int) -> None:
        """Note what is covered of a node, by spans on it or on what it consists of."""
        if self._counts[node]:
            self._covered[node] = self._nbytes[node]
        elif node >= self._leaves:
            self._covered[node] = 0
        else:
            self._covered[node] = sum(self._covered[2 * node : 2 * node + 2])
