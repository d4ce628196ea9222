"""Texts in a row that count values up, short: `%28..%53`.

A call of a backend takes and gives the states of all layers, some hundred values.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_VALUE: Final = re.compile(r"%(\d{1,18})")
_LONGEST: Final = 6  # as many states as a layer has
_LEAST: Final = 4  # texts that are worth it


def in_runs(texts: Iterable[str]) -> str:
    """Join texts; of many in a row whose values count up the first and the last.

    Where texts of a few kinds take turns, as keys and values do, the first turn stands
    for all: `float32[4] in %2, int8[4] in %3, ... %25`.
    """
    given, shown, at = list(texts), list[str](), 0
    keys = [_key(text) for text in given]
    while at < len(given):
        length, end = _run(keys, at)
        first, count = given[at : at + length], end - at
        if length == 1 and count >= _LEAST:
            shown.append(_ends(first[0], keys[end - 1][1]))
        elif count >= max(_LEAST, 2 * length):
            shown += [*first, f"... %{keys[end - 1][1]}"]
        else:
            shown, end = [*shown, given[at]], at + 1
        at = end
    return ", ".join(shown)


def _key(text: str) -> tuple[str, int]:
    """Return what texts of a run share, and the value that counts up, -1 for none."""
    values = _VALUE.findall(text)
    if len(values) != 1:
        return text, -1
    return _VALUE.sub("%", text), int(values[0])


def _run(keys: Sequence[tuple[str, int]], at: int) -> tuple[int, int]:
    """Return the length of a turn, and where the turns end that begin at a place."""
    best = 1, at + 1
    for length in range(1, _LONGEST + 1):
        end = at + length
        if any(number < 0 for _, number in keys[at:end]) or end > len(keys):
            break
        while end < len(keys) and _is_next(keys[end - length], keys[end], length):
            end += 1
        end -= (end - at) % length
        if end > best[1] and end - at >= 2 * length:
            best = length, end
    return best


def _is_next(one: tuple[str, int], other: tuple[str, int], step: int) -> bool:
    return (one[0], one[1] + step) == other


def _ends(text: str, last: int) -> str:
    """Return `%4..%25 SLOTS` of `%4 SLOTS`."""
    return _VALUE.sub(lambda found: f"{found[0]}..%{last}", text)
