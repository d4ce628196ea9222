"""How much planned memory of a method of ExecuTorch is in use at most at one moment.

In: a method, and which of its values are states. Out: bytes. Tensors that share bytes,
as a view does with what it views, count once.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from kvc.tools.executorch.contents import UNBOUND, PteMethod, Tensor, arguments

Place = tuple[int, int]  # number of a buffer, and a byte of it


def tensor_in_memory(method: PteMethod, value: int) -> Tensor | None:
    """Return a value that is a tensor in planned memory, None for others."""
    tensor = method.values[value].tensor
    if tensor is None or tensor.memory is None or tensor.dynamism == UNBOUND:
        return None
    return tensor


def peak_of(method: PteMethod, states: Sequence[int]) -> int:
    """Return the most bytes of planned memory that hold something at one moment."""
    places: dict[int, tuple[Place, Place]] = {}
    changes: list[tuple[int, int, int]] = []
    for value, (first, last) in _lifetimes(method, states).items():
        tensor = tensor_in_memory(method, value)
        if tensor is not None and tensor.memory is not None and tensor.nbytes:
            number, start = tensor.memory
            places[value] = (number, start), (number, start + tensor.nbytes)
            changes += [(first, 1, value), (last + 1, -1, value)]
    live = _Covered(place for both in places.values() for place in both)
    most = 0
    for _, group in groupby(sorted(changes), key=lambda change: change[0]):
        for _, change, value in group:
            live.add(*places[value], change)
        most = max(most, live.nbytes)
    return most


def _lifetimes(
    method: PteMethod, states: Sequence[int]
) -> Mapping[int, tuple[int, int]]:
    """Return the first and the last call for which each value is in use."""
    end = len(method.calls)
    spans = dict.fromkeys(method.inputs, (0, 0))
    for index, call in enumerate(method.calls):
        for value in arguments(method, call):
            first, _ = spans.get(value, (index, index))
            spans[value] = (first, index)
    for value in method.outputs:
        spans[value] = (spans.get(value, (end, end))[0], end)
    return spans | dict.fromkeys(states, (0, end))


class _Covered:
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
