"""Show names that differ only in a number as one line: `layers.{0..4}.attn.k`.

A model of thirty layers has thirty of every name; an overview shows one line.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
# A number such as a layer's: between dots, underscores, spaces or brackets, as in
# `k[:,1]`. The length is limited since Python refuses to parse thousands of digits.
NUMBER = re.compile(r"(?<![^._\s([,])\d{1,18}(?![^._\s)\]])")


def families(
    items: Iterable[T], name: Callable[[T], str], like: Callable[[T], Hashable]
) -> list[tuple[str, list[T]]]:
    """Group items whose names differ only in their numbers.

    Args:
        items: in any order; groups come in the order of their first members.
        name: the name of an item.
        like: a further key that must be equal within a group.

    Returns:
        The pattern and the members of each group. A number that varies is shown as
        `{0..4}`, with commas where numbers are missing.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault((NUMBER.sub("#", name(item)), like(item)), []).append(item)
    found = groups.values()
    return [(pattern_of([name(i) for i in group]), group) for group in found]


def pattern_of(names: Sequence[str]) -> str:
    """Return the common pattern of names that differ only in their numbers."""
    numbers = zip(*(map(int, NUMBER.findall(name)) for name in names), strict=True)
    ranges = iter([_range(sorted(set(column))) for column in numbers])
    return NUMBER.sub(lambda _: next(ranges), names[0])


def _range(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    first, last = numbers[0], numbers[-1]
    if numbers == list(range(first, last + 1)):
        return f"{{{first}..{last}}}"
    shown = ",".join(map(str, numbers[:3]))
    return f"{{{shown}}}" if len(numbers) <= 3 else f"{{{shown},..{last}}}"
