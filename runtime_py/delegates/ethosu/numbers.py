"""Scales as integers, and tables of functions.

In: real numbers that grids are apart. Out: multipliers and shifts of RESCALE, and the
256 results of a function.
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


def multiplier_of(scale: float) -> tuple[int, int]:
    """Return a multiplier below 2 ** 31 and a shift: scale = multiplier / 2 ** shift.

    A scale too small for the greatest shift has fewer bits.

    Raises:
        ScaleOutOfRange: it is greater than a shift of 2 allows.
    """
    fraction, exponent = math.frexp(scale)  # scale = fraction * 2 ** exponent
    multiplier, shift = round(fraction * (1 << _BITS)), _BITS - exponent
    if multiplier == 1 << _BITS:
        multiplier, shift = multiplier >> 1, shift - 1
    if shift > _MOST_SHIFT:
        multiplier, shift = round(math.ldexp(scale, _MOST_SHIFT)), _MOST_SHIFT
    if shift < _LEAST_SHIFT:
        raise ScaleOutOfRange(scale=scale, most=2.0 ** (_BITS - _LEAST_SHIFT))
    return multiplier, shift


def table_of(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]], x: Grid, y: Grid
) -> NDArray[np.int8]:
    """Return a function of int8 as 256 integers on the grid of its result."""
    given = x.numbers(np.arange(-128, 128, dtype=np.int32)).astype(np.float64)
    with np.errstate(all="ignore"):  # what is far outside of what is ever given
        made = function(given).astype(np.float32)
    return y.integers(made).astype(np.int8)
