"""Rules for reshapes, slices and broadcasts with symbolic sizes in XNNPACK.

XNNPACK derives the sizes of all values in a subgraph from the sizes of the subgraph's
inputs. Therefore a reshape may change only one symbolic size; each end of a slice must
have a fixed distance from the start or the end of the axis; and a broadcast must repeat
an axis a fixed number of times.
"""

from collections.abc import Sequence
from typing import Final

from kvc.schema.backends.operands import Arguments, Results, operand, operands_of
from kvc.schema.types import Affine, Dim, add_dims, count_from_front

MAX_REPEATS: Final = 4096  # 16 KiB of ones


def reshape(arguments: Arguments, results: Results) -> str:
    """Return a reason if a reshape changes more than one symbolic size, or ""."""
    before, after = operand(arguments[0]).type.dims, results[0].dims
    middle = changed_dims(before, after)
    if sum(isinstance(dim, Affine) for dim in middle) > 1:
        return f"more than one size to be worked out in {results[0]}"
    return ""


def changed_dims(before: Sequence[Dim], after: Sequence[Dim]) -> Sequence[Dim]:
    """Return `after` without the leading and trailing dims that equal `before`'s."""
    count = min(len(before), len(after))
    front = 0
    while front < count and before[front] == after[front]:
        front += 1
    back = 0
    while back < count - front and before[-1 - back] == after[-1 - back]:
        back += 1
    return after[front : len(after) - back]


def slice_(arguments: Arguments, results: Results) -> str:
    """Return why a slice is not supported, or "".

    Each end of the slice must have a fixed distance from the axis's start or end.
    """
    base, axis, start, end, step = arguments
    assert isinstance(axis, int)
    if step != 1:
        return f"a slice with step {step}"
    size = operand(base).type.dims[axis]
    ends = (0 if start is None else start, size if end is None else end)
    return _reason_of_places(ends, size)


def select(arguments: Arguments, results: Results) -> str:
    """Return why selecting one index of an axis is not supported, or "".

    The index must have a fixed distance from the axis's start or end.
    """
    base, axis, index = arguments
    assert isinstance(axis, int)
    return _reason_of_places((index,), operand(base).type.dims[axis])


def split(arguments: Arguments, results: Results) -> str:
    """Return why cutting an axis into parts is not supported, or "".

    Each cut must have a fixed distance from the axis's start or end.
    """
    base, sizes, axis = arguments
    assert isinstance(axis, int)
    assert isinstance(sizes, tuple)
    place: Dim = 0
    places = [place := add_dims(place, size) for size in sizes]
    return _reason_of_places(places, operand(base).type.dims[axis])


def _reason_of_places(places: Sequence[object], size: Dim) -> str:
    for place in places:
        assert isinstance(place, int | Affine)
        from_front = count_from_front(place, size)
        from_end = add_dims(from_front, size, -1)
        if isinstance(from_front, Affine) and isinstance(from_end, Affine):
            return f"place {place} of an axis of {size} elements"
    return ""


def expand(arguments: Arguments, results: Results) -> str:
    """Return why repeating axes of size 1 is not supported, or "".

    Each axis must be repeated a fixed number of times. kvc repeats an axis by a product
    with a tensor of ones, so the number of repeats is limited.
    """
    before, after = operand(arguments[0]).type.dims, results[0].dims
    padded = (1,) * (len(after) - len(before)) + before
    count = 1
    for old, new in zip(padded, after, strict=True):
        if old != new and isinstance(new, Affine):
            return f"repeating an axis {new} times"
        if old != new and isinstance(new, int):
            count *= new
    return "" if count <= MAX_REPEATS else f"repeating each element {count} times"


def pad(arguments: Arguments, results: Results) -> str:
    """Return why padding with a number is not supported, or "".

    The numbers of padding elements must be fixed, and not negative.
    """
    _, padding, value = arguments
    assert isinstance(padding, tuple)
    if not all(isinstance(count, int) and count >= 0 for count in padding):
        return f"padding {padding}"
    return "" if isinstance(value, int | float) else f"padding with {value}"


def join(arguments: Arguments, results: Results) -> str:
    """Return a reason if a concatenation has no inputs, or ""."""
    return "" if any(operands_of(arguments)) else "a join of nothing"


def anything(arguments: Arguments, results: Results) -> str:
    """Return "": all arguments are supported."""
    return ""
