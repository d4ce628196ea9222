"""Tell which tensors of a method of ExecuTorch are states, and which calls write them.

Such a file does not say which tensors are states. Here those are the ones with planned
memory that a call reads before anything of the same method writes them, inputs left
out: what they hold then is from the call before, or from the data they start with.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from kvc.tools.executorch.contents import Call, PteMethod
from kvc.tools.executorch.covered import Covered, Place, place_of

WRITE_BACK: Final = "aten::copy_"


def operator_of(method: PteMethod, call: Call) -> str:
    """Return the name of what a call runs."""
    if call.kind == "kernel":
        return method.operators[call.what]
    if call.kind == "delegate":
        return f"delegate {call.what} ({method.delegates[call.what].backend})"
    return call.kind


def written_by(method: PteMethod, call: Call) -> tuple[int, ...]:
    """Return the values that a call surely writes: a kernel's last argument.

    What a delegate writes stands among its arguments, and only it knows where.
    """
    if call.kind == "kernel" and call.args:
        last = call.args[-1]
        if method.values[last].kind == "tensors":
            return tuple(item for item in method.values[last].items if item != -1)
        return (last,)
    return call.args[1:] if call.kind == "move" else ()


def states_of(method: PteMethod) -> tuple[int, ...]:
    """Return the values whose content is from before the call."""
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
        # A delegate may fill all that it is given.
        filled.add(call.args if call.kind == "delegate" else written)
    return tuple(found)


class _Seen:
    """The values that calls so far have named, and inputs."""

    def __init__(self, method: PteMethod) -> None:
        self._method = method
        self._values = set(method.inputs)
        self._named = set[int]()  # by calls themselves; of a list that means its items

    def new_in(self, call: Call) -> list[int]:
        """Return the values that a call is the first to name, and note them."""
        found: dict[int, None] = {}
        for arg in dict.fromkeys(call.args):
            if arg not in self._named:
                self._named.add(arg)
                found |= dict.fromkeys((arg, *self._method.values[arg].items))
        new = [value for value in found if value != -1 and value not in self._values]
        self._values.update(new)
        return new


class _Filled:
    """The bytes of planned memory that something has filled.

    A view is a tensor of its own here: its memory is filled, though no call writes it.
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
        """Note that values are filled; those without planned memory do not matter."""
        for value in set(values) - self._values:
            self._values.add(value)
            if value in self._places:
                self._covered.add(*self._places[value], 1)


def writes_back(method: PteMethod, call: Call) -> bool:
    """Tell whether a call ends a method's work on a state, by a copy into it."""
    return operator_of(method, call) == WRITE_BACK and len(call.args) > 1
