"""Tell which tensors of a method of ExecuTorch are states, and which calls write them.

Such a file does not say which tensors are states. Here those are the ones with planned
memory that a call reads before anything of the same method writes them, inputs left
out: what they hold then is from the call before, or from the data they start with.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from kvc.tools.executorch.contents import Call, PteMethod, Tensor, arguments

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
    seen, found, filled = set(method.inputs), [], _Filled()
    back = {call.args[0] for call in method.calls if writes_back(method, call)}
    for value in method.inputs:
        filled.add(method.values[value].tensor)
    for call in method.calls:
        written = frozenset(written_by(method, call))
        for value in arguments(method, call):
            tensor = method.values[value].tensor
            if value in seen or tensor is None or tensor.memory is None:
                continue
            seen.add(value)
            reads = call.kind == "kernel" and value not in written
            if (reads and not filled.touches(tensor)) or value in back:
                found.append(value)
        # A delegate may fill all that it is given.
        for value in call.args if call.kind == "delegate" else written:
            filled.add(method.values[value].tensor)
    return tuple(found)


class _Filled:
    """The bytes of planned memory that something has filled, as spans that are apart.

    A view is a tensor of its own here: its memory is filled, though no call writes it.
    """

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []

    def _around(self, tensor: Tensor) -> tuple[int, int, int, int, int]:
        """Return buffer, start and end of a tensor, and which spans it touches."""
        assert tensor.memory is not None
        number, start = tensor.memory
        end = start + tensor.nbytes
        first = bisect_right(self._ends, (number, start))
        last = bisect_left(self._starts, (number, end))
        return number, start, end, first, last

    def touches(self, tensor: Tensor) -> bool:
        *_, first, last = self._around(tensor)
        return first < last

    def add(self, tensor: Tensor | None) -> None:
        if tensor is None or tensor.memory is None or not tensor.nbytes:
            return
        number, start, end, first, last = self._around(tensor)
        if first < last:
            start = min(start, self._starts[first][1])
            end = max(end, self._ends[last - 1][1])
        self._starts[first:last] = [(number, start)]
        self._ends[first:last] = [(number, end)]


def writes_back(method: PteMethod, call: Call) -> bool:
    """Tell whether a call ends a method's work on a state, by a copy into it."""
    return operator_of(method, call) == WRITE_BACK and len(call.args) > 1
