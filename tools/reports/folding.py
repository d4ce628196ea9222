"""Lines that repeat, as those of equal layers do, once: `... 28 more times`."""

import re
import sys
from collections.abc import Iterator, Sequence

from kvc.schema.families import pattern_of

_MOST_LINES = 400  # of what repeats
_LEAST_SAVED = 6
_ID = re.compile(r"%\d+|\bat \d+|^\s*\d+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.\d+(?:\.\w+)*")
_NUMBER = re.compile(r"\d+")


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
    keys = "".join(chr(numbers.setdefault(_key(one), len(numbers))) for one in lines)
    at = 0
    while at < len(lines):
        length, times = _run(keys, at)
        yield from lines[at : at + length]
        if times > 1:
            starts = [
                _name(lines[at + length * i : at + length * (i + 1)])
                for i in range(times)
            ]
            where = f", for {pattern_of(starts[1:])}" if all(starts) else ""
            what = "the line above" if length == 1 else f"the {length} lines above"
            yield f"{indent}... {what} {times - 1} more times{where}"
        at += length * times


def _key(line: str) -> str:
    """Return what lines that are alike share."""
    return _DOTTED.sub(lambda name: _NUMBER.sub("#", name[0]), _ID.sub("%", line))


def _run(keys: str, at: int) -> tuple[int, int]:
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


def _name(lines: Sequence[str]) -> str:
    """Return the first name with a number in some lines, up to that number, or ""."""
    for line in lines:
        found = _DOTTED.search(line)
        if found:
            number = _NUMBER.search(found[0], found[0].index("."))
            return found[0][: number.end()] if number else ""
    return ""
