"""Scales as integers, and tables of functions.

In: ratios of scales, as real numbers; functions of real numbers. Out: multipliers and
shifts of the operator RESCALE; tables for the operator TABLE. A table has 256 results
for int8, or 513 for int16, between which the operator interpolates linearly.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvc.schema.backends.grids import Grid
from kvc.schema.errors import ScaleOutOfRange

_BITS: Final = 31
_LEAST_SHIFT, _MOST_SHIFT = 2, 62


LINES: Final = 128  # distance of two entries in a table for int16
_ENTRIES: Final = 513
_MOST: Final = (1 << 15) - 1


def multiplier_of(scale: float, bits: int = _BITS) -> tuple[int, int]:
    """Return a multiplier and a shift for which scale = multiplier / 2 ** shift.

    A scale too small for the greatest shift is expressed with fewer significant bits.

    Args:
        scale: the number to express.
        bits: number of bits of the multiplier, which is below 2 ** bits.

    Raises:
        ScaleOutOfRange: the scale is below 0, or greater than a shift of 2 allows.
    """
    if not 0 <= scale < math.inf:
        raise ScaleOutOfRange(scale=scale, most=2.0 ** (bits - _LEAST_SHIFT))
    fraction, exponent = math.frexp(scale)  # scale = fraction * 2 ** exponent
    multiplier, shift = round(fraction * (1 << bits)), bits - exponent
    if multiplier == 1 << bits:
        multiplier, shift = multiplier >> 1, shift - 1
    if shift > _MOST_SHIFT:
        multiplier, shift = round(math.ldexp(scale, _MOST_SHIFT)), _MOST_SHIFT
    if shift < _LEAST_SHIFT:
        raise ScaleOutOfRange(scale=scale, most=2.0 ** (bits - _LEAST_SHIFT))
    return multiplier, shift


def table_of(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]], x: Grid, y: Grid
) -> NDArray[np.int8]:
    """Return a function's results on grid `y` for the 256 int8 numbers of grid `x`."""
    given = x.numbers(np.arange(-128, 128, dtype=np.int32)).astype(np.float64)
    with np.errstate(all="ignore"):  # for inputs far outside of the actual range
        made = function(given).astype(np.float32)
    return y.integers(made).astype(np.int8)


def table_of_lines(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    x_scale: float,
    y_scale: float,
) -> NDArray[np.int16]:
    """Return a function's results as 513 integers, for every `LINES`-th int16 number.

    Two neighbors in the table differ by less than 2 ** 15, as TOSA requires. Where the
    function is steeper, which is only outside of the argument's actual range, entries
    are clipped.

    Args:
        function: the function of real numbers.
        x_scale: the scale of the argument.
        y_scale: the scale of the result.
    """
    places = (np.arange(_ENTRIES, dtype=np.float64) - _ENTRIES // 2) * LINES
    given: NDArray[np.float64] = places * x_scale
    with np.errstate(all="ignore"):
        made = np.nan_to_num(function(given) / y_scale)
    entries = np.clip(np.rint(made), -_MOST - 1, _MOST).astype(np.int64)
    middle = _ENTRIES // 2
    for place in (*range(middle + 1, _ENTRIES), *range(middle - 1, -1, -1)):
        near = int(entries[place - 1 if place > middle else place + 1])
        entries[place] = min(max(int(entries[place]), near - _MOST), near + _MOST)
    return entries.astype(np.int16)
