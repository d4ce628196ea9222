"""Planned memory of a method of ExecuTorch: its states, and the peak of its use.

In: a method. Out: which tensors of the method are states, which calls write them, and
bytes. Bytes that tensors share, such as a view and its base, count once.

The file does not say which tensors are states. Here a tensor counts as a state if it
has planned memory, is no input, and is read by a call before any call of the same
method writes it. Its content is then from an earlier run of the method, or from initial
data.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final

from kvc.tools.executorch.contents import UNBOUND, Call, PteMethod, Tensor, arguments

Place = tuple[int, int]  # number of a buffer, offset of a byte in it
WRITE_BACK: Final = "aten::copy_"


def place_of(tensor: Tensor) -> tuple[Place, Place]:
    """Return the places where a tensor with planned memory begins and ends."""
    assert tensor.memory is not None
    number, start = tensor.memory
    return (number, start), (number, start + tensor.nbytes)


class Covered:
    """The number of bytes that at least one span covers.

    A segment tree over the places where spans begin and end: a change takes a number of
    steps logarithmic in the number of places.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        """Begin without spans; later spans begin and end at the given places."""
        ordered = sorted(set(places))
        self._index = {place: index for index, place in enumerate(ordered)}
        self._leaves = 1 << len(ordered).bit_length()
        self._counts = [0] * (2 * self._leaves)  # number of spans that cover a node
        self._covered = [0] * (2 * self._leaves)
        self._nbytes = [0] * (2 * self._leaves)
        for index, (one, other) in enumerate(pairwise(ordered)):
            # No span extends over two buffers.
            apart = one[0] != other[0]
            self._nbytes[self._leaves + index] = 0 if apart else other[1] - one[1]
        for node in range(self._leaves - 1, 0, -1):
            self._nbytes[node] = self._nbytes[2 * node] + self._nbytes[2 * node + 1]

    @property
    def nbytes(self) -> int:
        """Return the number of bytes that are covered now."""
        return self._covered[1]

    def add(self, start: Place, end: Place, change: int) -> None:
        """Add a span (`change` 1) or remove it (`change` -1)."""
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
        """Note how many bytes of a node are covered, by its or its children's spans."""
        if self._counts[node]:
            self._covered[node] = self._nbytes[node]
        elif node >= self._leaves:
            self._covered[node] = 0
        else:
            self._covered[node] = sum(self._covered[2 * node : 2 * node + 2])


def operator_of(method: PteMethod, call: Call) -> str:
    """Return the name of the operator or delegate that a call runs."""
    if call.kind == "kernel":
        return method.operators[call.what]
    if call.kind == "delegate":
        return f"delegate {call.what} ({method.delegates[call.what].backend})"
    return call.kind


def written_by(method: PteMethod, call: Call) -> tuple[int, ...]:
    """Return the values that a call is known to write: a kernel's last argument.

    A delegate writes some of its arguments, but the file does not say which.
    """
    if call.kind == "kernel" and call.args:
        last = call.args[-1]
        if method.values[last].kind == "tensors":
            return tuple(item for item in method.values[last].items if item != -1)
        return (last,)
    return call.args[1:] if call.kind == "move" else ()


def states_of(method: PteMethod) -> tuple[int, ...]:
    """Return the values that hold content from before a run of the method."""
    places = {
        value: place_of(one.tensor)
        for value, one in enumerate(method.values)
        if one.tensor is not None and one.tensor.memory is not None
    }
    filled = _Filled(places)
    filled.add(method.inputs)
    seen, found = _Seen(method), []
    back = {call.args[0] for call in method.calls if writes_back(method, call)}
    for call in method.calls:
        written = frozenset(written_by(method, call))
        for value in seen.new_in(call):
            if value in places:
                reads = call.kind == "kernel" and value not in written
                if (reads and not filled.touches(value)) or value in back:
                    found.append(value)
        # A delegate can fill all its arguments.
        filled.add(call.args if call.kind == "delegate" else written)
    return tuple(found)


class _Seen:
    """The inputs of a method, and the arguments of its calls so far."""

    def __init__(self, method: PteMethod) -> None:
        self._method = method
        self._values = set(method.inputs)
        self._named = set[int]()  # arguments of calls; lists stand for their items

    def new_in(self, call: Call) -> list[int]:
        """Return the arguments of a call that no earlier call had, and note them."""
        found: dict[int, None] = {}
        for arg in dict.fromkeys(call.args):
            if arg not in self._named:
                self._named.add(arg)
                found |= dict.fromkeys((arg, *self._method.values[arg].items))
        new = [value for value in found if value != -1 and value not in self._values]
        self._values.update(new)
        return new


class _Filled:
    """The bytes of planned memory that inputs and calls have filled.

    A view is a separate tensor here: its memory can be filled although no call writes
    the view.
    """

    def __init__(self, places: Mapping[int, tuple[Place, Place]]) -> None:
        self._places = places
        self._covered = Covered(place for both in places.values() for place in both)
        self._values = set[int]()

    def touches(self, value: int) -> bool:
        """Tell whether any byte of a value with planned memory is filled."""
        start, end = self._places[value]
        before = self._covered.nbytes
        self._covered.add(start, end, 1)
        new = self._covered.nbytes - before
        self._covered.add(start, end, -1)
        return new < end[1] - start[1]

    def add(self, values: Iterable[int]) -> None:
        """Note that values are filled; values without planned memory are ignored."""
        for value in set(values) - self._values:
            self._values.add(value)
            if value in self._places:
                self._covered.add(*self._places[value], 1)


def writes_back(method: PteMethod, call: Call) -> bool:
    """Tell whether a call copies a new content back into a state."""
    return operator_of(method, call) == WRITE_BACK and len(call.args) > 1


def tensor_in_memory(method: PteMethod, value: int) -> Tensor | None:
    """Return a value's tensor if it lies in planned memory, None otherwise."""
    tensor = method.values[value].tensor
    if tensor is None or tensor.memory is None or tensor.dynamism == UNBOUND:
        return None
    return tensor


def peak_of(method: PteMethod, states: Sequence[int]) -> int:
    """Return the most bytes of planned memory that are in use during one call."""
    places: dict[int, tuple[Place, Place]] = {}
    changes: list[tuple[int, int, int]] = []
    for value, (first, last) in _lifetimes(method, states).items():
        tensor = tensor_in_memory(method, value)
        if tensor is not None and tensor.nbytes:
            places[value] = place_of(tensor)
            changes += [(first, 1, value), (last + 1, -1, value)]
    live = Covered(place for both in places.values() for place in both)
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
