"""Text for a terminal: safe names, readable sizes, columns, and what repeats told once.

A model of thirty layers has thirty names of everything, and its code thirty times the
same lines; an overview wants one. So names that differ only in a number are one name,
`layers.{0..4}.attn.k`, lines that repeat are told once, `... 28 more times`, and values
that count up are told by the first and the last, `%28..%53`.
"""

import re
import sys
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # what a terminal obeys or hides
T = TypeVar("T")
# Of a layer or the like: between dots, underscores, spaces or brackets, as in `k[:,1]`.
# Python reads no number of thousands of digits.
NUMBER = re.compile(r"(?<![^._\s([,])\d{1,18}(?![^._\s)\]])")
_MOST_LINES = 400  # of what repeats
_LEAST_SAVED = 6  # lines
_ID = re.compile(r"%\d+|\bat \d+|^\s*\d+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.\d+(?:\.\w+)*")
_DIGITS = re.compile(r"\d+")
_VALUE: Final = re.compile(r"%(\d{1,18})")
_LONGEST_TURN: Final = 6  # texts; as many states as a layer has
_LEAST_COUNT: Final = 4  # texts in a row that are worth it


def escape(text: str, keep: str = "") -> str:
    r"""Return the text with control and invisible characters as `\x1b` or `\u202e`.

    Names come from files that anyone may have made; printed raw they could move the
    cursor, recolour or reverse what stands around them.
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
    """Return a size to three digits in decimal units: 512 B, 4.19 MB."""
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
    """Return `1 blob`, `2 blobs`, `1,200 blobs`, `2 copies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def share(part: int, whole: int) -> str:
    """Return a percentage with one decimal, `0.0%` of nothing."""
    return f"{100 * part / whole if whole else 0:.1f}%"


def columns(
    rows: Iterable[Sequence[str]], align: str = "", indent: int = 2
) -> list[str]:
    """Line rows up in columns, two spaces apart.

    Args:
        rows: equally long sequences of cells.
        align: `<` or `>` for each column; columns beyond it are left-aligned.
        indent: spaces before the first column.
    """
    cells = [tuple(row) for row in rows]
    if not cells:
        return []
    align = align.ljust(len(cells[0]), "<")
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    if align[len(widths) - 1] == "<":
        widths[-1] = 0  # nothing comes after it
    return [
        (" " * indent + "  ".join(map(_padded, row, align, widths))).rstrip()
        for row in cells
    ]


def _padded(cell: str, side: str, width: int) -> str:
    return cell.rjust(width) if side == ">" else cell.ljust(width)


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str = "",
    empty: str = "",
) -> list[str]:
    """Line rows up under their titles, or say in a line that there are none.

    Args:
        titles: of the columns.
        rows: equally long, as the titles.
        align: as of `columns`.
        empty: what is said of no rows.
    """
    return columns([titles, *rows], align) if rows else [empty]


def families(
    items: Iterable[T],
    name: Callable[[T], str],
    like: Callable[[T], Hashable],
    apart: bool = False,
) -> list[tuple[str, list[T]]]:
    """Group items whose names differ only in their numbers.

    Args:
        items: in any order; groups come in the order of their first members.
        name: the name of an item.
        like: what else must be equal within a group.
        apart: whether each item is a group of its own all the same.

    Returns:
        For each group its pattern and its members. A number that varies is shown as
        `{0..4}`, with commas where some are missing.
    """
    if apart:
        return [(name(item), [item]) for item in items]
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault((NUMBER.sub("#", name(item)), like(item)), []).append(item)
    found = groups.values()
    return [(pattern_of([name(i) for i in group]), group) for group in found]


def pattern_of(names: Sequence[str]) -> str:
    """Return one text for names that differ only in their numbers."""
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


def folded(lines: Sequence[str], indent: str) -> Iterator[str]:
    """Yield lines; of those that repeat one after another only the first.

    Lines are alike if only numbers of values, addresses and numbers in dotted names
    differ.

    Args:
        lines: in their order.
        indent: before the line that stands for those left out.
    """
    if len(lines) > sys.maxunicode:  # nobody reads so many
        yield from lines
        return
    numbers: dict[str, int] = {}
    # A character for each line, the same for those that are alike: quick to compare.
    keys = "".join(
        chr(numbers.setdefault(_line_key(one), len(numbers))) for one in lines
    )
    at = 0
    while at < len(lines):
        length, times = _line_run(keys, at)
        yield from lines[at : at + length]
        if times > 1:
            starts = [
                _first_name(lines[at + length * i : at + length * (i + 1)])
                for i in range(times)
            ]
            where = f", for {pattern_of(starts[1:])}" if all(starts) else ""
            what = "the line above" if length == 1 else f"the {length} lines above"
            yield f"{indent}... {what} {times - 1} more times{where}"
        at += length * times


def _line_key(line: str) -> str:
    """Return what lines that are alike share."""
    return _DOTTED.sub(lambda name: _DIGITS.sub("#", name[0]), _ID.sub("%", line))


def _line_run(keys: str, at: int) -> tuple[int, int]:
    """Return what repeats from a place on: of how many lines it is, and how often.

    Of all that repeats it is what leaves most lines out; one line once if that is few.
    """
    best, saved = (1, 1), _LEAST_SAVED - 1
    end = at + min(_MOST_LINES, (len(keys) - at) // 2) + 1
    again = at
    while (again := keys.find(keys[at], again + 1, end)) != -1:
        first, length, times = keys[at:again], again - at, 1
        while keys.startswith(first, at + length * times):
            times += 1
        if length * (times - 1) > saved:
            best, saved = (length, times), length * (times - 1)
    return best


def _first_name(lines: Sequence[str]) -> str:
    """Return the first name with a number in some lines, up to that number, or ""."""
    for line in lines:
        found = _DOTTED.search(line)
        if found:
            number = _DIGITS.search(found[0], found[0].index("."))
            return found[0][: number.end()] if number else ""
    return ""


def in_runs(texts: Iterable[str]) -> str:
    """Join texts; of many in a row whose values count up the first and the last.

    Where texts of a few kinds take turns, as keys and values do, the first turn stands
    for all: `float32[4] in %2, int8[4] in %3, ... %25`.
    """
    given, shown, at = list(texts), list[str](), 0
    keys = [_value_key(text) for text in given]
    while at < len(given):
        length, end = _value_run(keys, at)
        first, count = given[at : at + length], end - at
        if length == 1 and count >= _LEAST_COUNT:
            last = keys[end - 1][1]  # `%4..%25 SLOTS` of `%4 SLOTS`
            shown.append(_VALUE.sub(rf"\g<0>..%{last}", first[0]))
        elif count >= max(_LEAST_COUNT, 2 * length):
            shown += [*first, f"... %{keys[end - 1][1]}"]
        else:
            shown, end = [*shown, given[at]], at + 1
        at = end
    return ", ".join(shown)


def _value_key(text: str) -> tuple[str, int]:
    """Return what texts of a run share, and the value that counts up, -1 for none."""
    values = _VALUE.findall(text)
    if len(values) != 1:
        return text, -1
    return _VALUE.sub("%", text), int(values[0])


def _value_run(keys: Sequence[tuple[str, int]], at: int) -> tuple[int, int]:
    """Return the length of a turn, and where the turns end that begin at a place."""
    best = 1, at + 1
    for length in range(1, _LONGEST_TURN + 1):
        end = at + length
        if any(number < 0 for _, number in keys[at:end]) or end > len(keys):
            break
        while end < len(keys) and keys[end] == (
            keys[end - length][0],
            keys[end - length][1] + length,
        ):
            end += 1
        end -= (end - at) % length
        if end > best[1] and end - at >= 2 * length:
            best = length, end
    return best
