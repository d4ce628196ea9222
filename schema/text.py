"""Text for a terminal: safe names, readable sizes, columns, groups of similar names.

A model of thirty layers has thirty names for each part of a layer. An overview shows
names that differ only in a number as a single name, `layers.{0..4}.attn.k`.
"""

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # a terminal obeys or hides these
T = TypeVar("T")
# Of a layer or the like: between dots, underscores, spaces or brackets, as in `k[:,1]`.
# Python reads no number of thousands of digits.
NUMBER = re.compile(r"(?<![^._\s([,])\d{1,18}(?![^._\s)\]])")


def escape(text: str, keep: str = "") -> str:
    r"""Return the text with control and invisible characters as `\x1b` or `\u202e`.

    Names come from files of unknown origin; printed raw they could move the cursor, or
    recolour or reverse the text around them.
    """
    return "".join(
        char
        if char in keep or unicodedata.category(char) not in _HIDDEN
        else _code(char)
        for char in text
    )


def _code(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def size(nbytes: int) -> str:
    """Return a size with three digits, in decimal units: 512 B, 4.19 MB."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):  # the last one reached is used
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{nbytes} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1,200 blobs`, `2 copies`, `2 matrices`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("ix"):
        return f"{count:,} {noun[:-2]}ices"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def share(part: int, whole: int) -> str:
    """Return `part` as a percentage of `whole`, with one decimal; `0.0%` if it is 0."""
    return f"{100 * part / whole if whole else 0:.1f}%"


def columns(
    rows: Iterable[Sequence[str]], align: str = "", indent: int = 2
) -> list[str]:
    """Return rows of text whose cells are aligned in columns, two spaces apart.

    Args:
        rows: equally long sequences of cells.
        align: `<` or `>` for each column; further columns are left-aligned.
        indent: spaces before the first column.
    """
    cells = [tuple(row) for row in rows]
    if not cells:
        return []
    align = align.ljust(len(cells[0]), "<")
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    if align[len(widths) - 1] == "<":
        widths[-1] = 0  # the last column needs no padding
    return [
        (" " * indent + "  ".join(map(_padded, row, align, widths))).rstrip()
        for row in cells
    ]


def _padded(cell: str, side: str, width: int) -> str:
    return cell.rjust(width) if side == ">" else cell.ljust(width)


def families(
    items: Iterable[T],
    name: Callable[[T], str],
    like: Callable[[T], Hashable],
    apart: bool = False,
) -> list[tuple[str, list[T]]]:
    """Group items whose names differ only in their numbers.

    Args:
        items: in any order; groups come in the order of their first members.
        name: returns the name of an item.
        like: returns an additional key of an item; items of a group have equal keys.
        apart: whether to make a separate group of each item.

    Returns:
        For each group, a name pattern and the items. A pattern shows a number that
        varies as `{0..4}`, or with commas, as `{0,2,5}`, if numbers between are
        missing.
    """
    if apart:
        return [(name(item), [item]) for item in items]
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault((NUMBER.sub("#", name(item)), like(item)), []).append(item)
    found = groups.values()
    return [(pattern_of([name(i) for i in group]), group) for group in found]


def pattern_of(names: Sequence[str]) -> str:
    """Return one pattern, such as `k{0..4}`, for names that differ only in numbers."""
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
