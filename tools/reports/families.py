"""Names that differ only in a number, as one line: `layers.{0..4}.attn.k`.

A model of thirty layers has thirty names of everything; an overview wants one.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
_NUMBER = re.compile(r"(?<![^._\s])\d+(?![^._\s])")


def families(
    items: Iterable[T], name: Callable[[T], str], like: Callable[[T], Hashable]
) -> list[tuple[str, list[T]]]:
    """Group items whose names differ only in their numbers.

    Args:
        items: in any order; groups come in the order of their first members.
        name: the name of an item.
        like: what else must be equal within a group.

    Returns:
        For each group its pattern and its members. A number that varies is shown as
        `{0..4}`, with commas where some are missing.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault((_NUMBER.sub("#", name(item)), like(item)), []).append(item)
    return [(_pattern([name(i) for i in group]), group) for group in groups.values()]


def _pattern(names: list[str]) -> str:
    numbers = zip(*(map(int, _NUMBER.findall(name)) for name in names), strict=True)
    ranges = iter([_range(sorted(set(column))) for column in numbers])
    return _NUMBER.sub(lambda _: next(ranges), names[0])


def _range(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    first, last = numbers[0], numbers[-1]
    if numbers == list(range(first, last + 1)):
        return f"{{{first}..{last}}}"
    shown = ",".join(map(str, numbers[:3]))
    return f"{{{shown}}}" if len(numbers) <= 3 else f"{{{shown},..{last}}}"
