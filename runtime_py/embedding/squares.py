"""Squares that pictures lie in the middle of, as processors of Janus make them.

In: what a bundle says of the square, a picture. Out: the size that the picture is made,
and the square around it.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.schema.frozen import frozen

SQUARE: Final = "square"  # of settings, where a picture lies in the middle of one
_MOST: Final = 1 << 14  # of a side


@frozen
class Square:
    """A square that a resized picture lies in the middle of.

    Attributes:
        side: that its longer side is made.
        least: of its shorter side.
        colour: of what it does not cover, of each channel.
    """

    side: int
    least: int
    colour: tuple[int, ...]

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that a picture is made."""
        scale = self.side / max(height, width)
        return max(round(height * scale), self.least), max(
            round(width * scale), self.least
        )

    def around(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return a picture [height, width, 3] in the middle of the square."""
        height, width = values.shape[:2]
        side = max(height, width)
        padded = np.full((side, side, values.shape[2]), self.colour, np.uint8)
        top, left = (side - height) // 2, (side - width) // 2
        padded[top : top + height, left : left + width] = values
        return padded


def square_of(found: object) -> Square | None:
    """Return the square that settings speak of, None where they speak of none.

    Raises:
        ValueError: there can be no such square.
    """
    match found:
        case None:
            return None
        case {"side": int(side), "least": int(least), "colour": [_, _, _] as colour}:
            if 0 < least <= side < _MOST and all(map(_is_byte, colour)):
                return Square(side, least, tuple(colour))
    raise ValueError(found)


def _is_byte(found: object) -> bool:
    return type(found) is int and 0 <= found < 256
