"""A power of an int32, for numbers of any size: its first bits, looked up in a table.

In: positive int32. Out: for each the power of its mantissa m, and by how many bits it
was moved to get there: x = m * 2 ** (30 - moved), m from 1 to 2, or from 1/2 to 2 where
moves are even. So 1 / x and 1 / sqrt(x) have 14 good bits, however small x is.
"""

from typing import Final

import numpy as np

from kvc.runtime.delegates.ethosu.numbers import table_of_lines
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder

INVERSE_BITS, ROOT_BITS = 22, 21  # a result of 1 is 2 ** bits
_TOP: Final = 30  # the bit that a mantissa of 1 is
_INVERSE_ONE: Final = 1 << (INVERSE_BITS - 7)
_ROOT_ONE: Final = 1 << (ROOT_BITS - 7)
_HALF_PLACES: Final = 1 << 15


def inverse(builder: GraphBuilder, x: str) -> tuple[str, str]:
    """Return 1 / m, 2 ** 22 of one, and by how many bits x was moved to m.

    The entry for 1 is one step short of 2 ** 15, which int16 does not have.
    """
    moved = builder.with_number("SUB", builder.leading_zeros(x), 1)
    mantissa = builder.arithmetic("LOGICAL_LEFT_SHIFT", x, moved)
    middle = 3 << (_TOP - 1)  # 1.5
    place = _place(builder, mantissa, middle, _TOP - 16)
    entries = table_of_lines(
        lambda at: 1 / (1.5 + at / (2 * _HALF_PLACES)), 1.0, 1 / _INVERSE_ONE
    )
    return builder.table(place, entries), moved


def inverse_root(builder: GraphBuilder, x: str) -> tuple[str, str]:
    """Return m ** -0.5, 2 ** 21 of one, and half of by how many bits x was moved."""
    moved = builder.with_number("SUB", builder.leading_zeros(x), 1)
    half = builder.with_number("ARITHMETIC_RIGHT_SHIFT", moved, 1)
    even = builder.arithmetic("ADD", half, half)
    mantissa = builder.arithmetic("LOGICAL_LEFT_SHIFT", x, even)
    place = _place(builder, mantissa, 1 << _TOP, _TOP - 15)
    entries = table_of_lines(
        lambda at: np.maximum(1 + at / _HALF_PLACES, 0.5) ** -0.5, 1.0, 1 / _ROOT_ONE
    )
    return builder.table(place, entries), half


def _place(builder: GraphBuilder, mantissa: str, middle: int, shift: int) -> str:
    """Return the place of a mantissa in a table whose middle is at place 0."""
    off = builder.with_number("SUB", mantissa, middle)
    return builder.rescale(off, [(1 << 30, 30 + shift)], (0, 0), Element.INT16)
