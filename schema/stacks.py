"""Names of states that are parts of one buffer: `k[0]`, or `k[:,0]` along axis 1.

If a buffer has the caches of all layers, the compiler divides it into one state per
layer. In: the name of a buffer, and an axis. Out: the names of the buffer's parts. The
other way round, the module finds the parts of a buffer among the names of all states.
"""

from collections.abc import Sequence


def part_name(name: str, axis: int, place: int) -> str:
    """Return the name of a buffer's part, at index `place` of an axis.

    The name is in Python's notation, such as `k[:,0]`.
    """
    return f"{name}[{':,' * axis}{place}]"


def parts_of(name: str, known: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
    """Return the axis along which a buffer is divided, and the names of its parts.

    The result is None if the buffer is not divided.

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
