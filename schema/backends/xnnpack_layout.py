"""Rules for reshapes, slices and broadcasts that XNNPACK can express symbolically.

XNNPACK derives the sizes of all values in a subgraph from the sizes of the subgraph's
inputs. Therefore only a single size of a reshape can be symbolic, the ends of a slice
must have fixed distances from the start or end of the axis, and a broadcast must have
fixed new sizes.
"""

from collections.abc import Sequence
from typing import Final

from kvc.schema.backends.operands import Arguments, Results, operand, operands_of
from kvc.schema.types import Affine, Dim, add_dims, count_from_front

MAX_REPEATS: Final = 4096  # 16 KiB of ones


def reshape(arguments: Arguments, results: Results) -> str:
    """Accept reshapes; at most one of the sizes that change can be symbolic."""
    before, after = operand(arguments[0]).type.dims, results[0].dims
    middle = changed_dims(before, after)
    if sum(isinstance(dim, Affine) for dim in middle) > 1:
        return f"more than one size to be worked out in {results[0]}"
    return ""


def changed_dims(before: Sequence[Dim], after: Sequence[Dim]) -> Sequence[Dim]:
    """Return `after` without the first and last dims that `before` has too."""
    count = min(len(before), len(after))
    front = 0
    while front < count and before[front] == after[front]:
        front += 1
    back = 0
    while back < count - front and before[-1 - back] == after[-1 - back]:
        back += 1
    return after[front : len(after) - back]


def slice_(arguments: Arguments, results: Results) -> str:
    """Slice an axis; each end has a fixed distance from the axis's start or end."""
    base, axis, start, end, step = arguments
    assert isinstance(axis, int)
    if step != 1:
        return f"a slice with step {step}"
    size = operand(base).type.dims[axis]
    ends = (0 if start is None else start, size if end is None else end)
    return _reason_of_places(ends, size)


def select(arguments: Arguments, results: Results) -> str:
    """Take one slice of an axis."""
    base, axis, index = arguments
    assert isinstance(axis, int)
    return _reason_of_places((index,), operand(base).type.dims[axis])


def split(arguments: Arguments, results: Results) -> str:
    """Cut an axis into parts."""
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
    """Repeat axes of one element, each a fixed number of times.

    kvc repeats by a product with a tensor of ones; the size of this tensor is limited.
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
    """Pad with a number; negative padding is not accepted."""
    _, padding, value = arguments
    assert isinstance(padding, tuple)
    if not all(isinstance(count, int) and count >= 0 for count in padding):
        return f"padding {padding}"
    return "" if isinstance(value, int | float) else f"padding with {value}"


def join(arguments: Arguments, results: Results) -> str:
    """Concatenate along an axis."""
    return "" if any(operands_of(arguments)) else "a join of nothing"


def anything(arguments: Arguments, results: Results) -> str:
    """Accept any arguments."""
    return ""
