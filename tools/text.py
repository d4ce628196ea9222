"""Print repeated lines once, and give tables their titles.

Repeated lines become one line and a count, `... 28 more times`. Values that count up
become the first and the last value, `%28..%53`.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvc.schema.text import columns, pattern_of

_MOST_LINES = 400  # of what repeats
_LEAST_SAVED = 6  # lines
_ID = re.compile(r"%\d+|\bat \d+|^\s*\d+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.\d+(?:\.\w+)*")
_DIGITS = re.compile(r"\d+")
_VALUE: Final = re.compile(r"%(\d{1,18})")
_LONGEST_TURN: Final = 6  # texts; as many states as a layer has
_LEAST_COUNT: Final = 4  # texts in a row that are worth it


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str = "",
    empty: str = "",
) -> list[str]:
    """Return lines with rows in columns under their titles, or one line for no rows.

    Args:
        titles: titles of the columns.
        rows: rows with one cell for each title.
        align: as in `columns`.
        empty: line to return if there are no rows.
    """
    return columns([titles, *rows], align) if rows else [empty]


def folded(lines: Sequence[str], indent: str) -> Iterator[str]:
    """Yield lines; of a sequence of lines that repeats, only its first occurrence.

    Lines count as repeated if they differ only in numbers of values, addresses and
    numbers in dotted names.

    Args:
        lines: lines in order.
        indent: indentation of the line that counts the omitted lines.
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
    """Return a key that is equal for lines that count as repeated."""
    return _DOTTED.sub(lambda name: _DIGITS.sub("#", name[0]), _ID.sub("%", line))


def _line_run(keys: str, at: int) -> tuple[int, int]:
    """Return the length of the sequence that repeats from `at` on, and how often.

    Of several sequences, take the one that omits the most lines. If it omits few lines,
    return one line, once.
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
    """Return the first name with a number in lines, cut before the number, or ""."""
    for line in lines:
        found = _DOTTED.search(line)
        if found:
            number = _DIGITS.search(found[0], found[0].index("."))
            return found[0][: number.end()] if number else ""
    return ""


def in_runs(texts: Iterable[str]) -> str:
    """Join texts; of a long run whose values count up, only the first and the last.

    If texts of a few kinds alternate, as keys and values do, the result has the first
    text of each kind and the last value: `float32[4] in %2, int8[4] in %3, ... %25`.
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
    """Return a text without its value, and the number of the value.

    Texts of one run have equal first parts. The number is -1 if the text does not have
    exactly one value.
    """
    values = _VALUE.findall(text)
    if len(values) != 1:
        return text, -1
    return _VALUE.sub("%", text), int(values[0])


def _value_run(keys: Sequence[tuple[str, int]], at: int) -> tuple[int, int]:
    """Return the length of the repeated group at `at`, and where repetition ends."""
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
