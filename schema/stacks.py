"""Names of states that are parts of one buffer: `k[0]`, or `k[:,0]` along axis 1.

The compiler divides a buffer with the caches of all layers into one state per layer.
In: the name of a buffer, and an axis. Out: the names of the buffer's parts; or the
parts of a buffer among known names.
"""

from collections.abc import Sequence


def part_name(name: str, axis: int, place: int) -> str:
    """Return the name of the part at an index of an axis, in Python's notation."""
    return f"{name}[{':,' * axis}{place}]"


def parts_of(name: str, known: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
    """Return the axis and the parts of a buffer; None if it is not divided.

    Args:
        name: name of the buffer, or of a part that is divided into further parts.
        known: the names of all states.
    """
    inside = dict.fromkeys(
        one[len(name) + 1 :].partition("]")[0]
        for one in known
        if one.startswith(f"{name}[")
    )
    axis = next(iter(inside), "").count(":,")
    parts = tuple(part_name(name, axis, place) for place in range(len(inside)))
    if not parts or {f"{name}[{text}]" for text in inside} != set(parts):
        return None
    return axis, parts
