"""Where methods are bound to find out how their lists follow sizes.

In: the symbols of a program, and those that a session fixes. Out: *boxes*, bounds for
each symbol that one list may serve; and in a box the sizes to bind at.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from kvc.schema.types import Symbol

Box = tuple[tuple[int, int], ...]  # the bounds of each symbol
_STEPS: Final = (0, 1, 2, 3, 5, 8, 13, 21)
_MOST_BOXES: Final = 64
_FEW_SIZES: Final = 4  # sizes that say how numbers follow them; fewer have a box each
_FEW: Final = (4, 16)  # lengths into which prompts are cut, beside 1


def boxes_of(symbols: Sequence[Symbol], used: Sequence[bool]) -> list[Box]:
    """Return the boxes that cover all sizes, those of small sizes first.

    Sizes 0 and 1 are boxes of their own, since an axis of one element may lie in memory
    in any way, and one of none needs no work. A symbol with buckets has a box for each,
    and so has one of few sizes.

    Args:
        symbols: the symbols of the program.
        used: for each, whether the method has steps that may follow it.
    """
    runs = [
        _runs(symbol) if one else [(symbol.lower, symbol.upper)]
        for symbol, one in zip(symbols, used, strict=True)
    ]
    return list(product(*runs))[:_MOST_BOXES]


def _runs(symbol: Symbol) -> list[tuple[int, int]]:
    if symbol.sizes:
        return [(size, size) for size in symbol.sizes]
    small = [(size, size) for size in (0, 1) if symbol.lower <= size <= symbol.upper]
    low = max(symbol.lower, 2)
    if symbol.upper - low + 1 < _FEW_SIZES:
        return small + [(size, size) for size in range(low, symbol.upper + 1)]
    return small + ([(low, symbol.upper)] if low <= symbol.upper else [])


def fixed_boxes(box: Box, used: Sequence[bool], fixed: Sequence[bool]) -> Iterator[Box]:
    """Yield boxes within a box where each size that a call chooses is one of a few.

    They are for methods whose number of steps follows their sizes, such as scans.
    """
    runs = [
        [(low, high)] if own or not used[i] or low == high else _few(low, high)
        for i, ((low, high), own) in enumerate(zip(box, fixed, strict=True))
    ]
    yield from product(*runs)


def _few(low: int, high: int) -> list[tuple[int, int]]:
    return [(size, size) for size in _FEW if low <= size <= high]


def samples_of(
    box: Box, used: Sequence[bool], fixed: Sequence[bool]
) -> Iterator[tuple[int, ...]]:
    """Yield sizes within a box, a number for each symbol.

    At the end come the greatest of each symbol alone, and of all together. Some sizes
    may not go together, such as those of a cache that is full, and of what it gets.

    Args:
        box: the bounds of each symbol.
        used: for each symbol, whether it has to vary.
        fixed: whether a session fixes it: such sizes are taken from the upper end,
            since a call needs room in its session.
    """
    varying = [i for i, (low, high) in enumerate(box) if used[i] and low < high]
    rounds = len(_STEPS) if varying else 1
    seen = set()
    for turn in range(rounds):
        sizes = [high for _, high in box]
        for order, i in enumerate(varying):
            low, high = box[i]
            step = min(_STEPS[(turn * (2 * order + 1)) % rounds], high - low)
            sizes[i] = high - step if fixed[i] else low + step
        if tuple(sizes) not in seen:
            seen.add(tuple(sizes))
            yield tuple(sizes)
    least = [high if fixed[i] else low for i, (low, high) in enumerate(box)]
    alone = [
        tuple(high if i == one else size for i, size in enumerate(least))
        for one, (_, high) in enumerate(box)
    ]
    whole = tuple(high for _, high in box)
    yield from (one for one in dict.fromkeys([*alone, whole]) if one not in seen)
