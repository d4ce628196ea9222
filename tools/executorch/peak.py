"""How much planned memory of a method of ExecuTorch is in use at most at one moment.

In: a method, and which of its values are states. Out: bytes. Tensors that share bytes,
as a view does with what it views, count once.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from kvc.tools.executorch.contents import UNBOUND, PteMethod, Tensor, arguments
from kvc.tools.executorch.covered import Covered, Place, place_of


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
