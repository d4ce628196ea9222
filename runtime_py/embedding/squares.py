"""Pad pictures to a square, centered, as the processors of Janus do.

In: a bundle's settings for the square, a picture. Out: the size that the picture is
resized to, and the padded picture.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.schema.frozen import frozen

SQUARE: Final = "square"  # the settings key for pictures padded to a square
_MOST: Final = 1 << 14  # the limit of a side


@frozen
class Square:
    """A square with a resized picture in its center.

    Attributes:
        side: the length in pixels of the longer side of the resized picture.
        least: the least length in pixels of the shorter side.
        colour: the color of the padding, a value from 0 to 255 for each channel.
    """

    side: int
    least: int
    colour: tuple[int, ...]

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that a picture is resized to."""
        scale = self.side / max(height, width)
        return max(round(height * scale), self.least), max(
            round(width * scale), self.least
        )

    def around(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return a square with a picture [height, width, 3] in its center."""
        height, width = values.shape[:2]
        side = max(height, width)
        padded = np.full((side, side, values.shape[2]), self.colour, np.uint8)
        top, left = (side - height) // 2, (side - width) // 2
        padded[top : top + height, left : left + width] = values
        return padded


def square_of(found: object) -> Square | None:
    """Return the square that a bundle's settings describe; None if `found` is None.

    Raises:
        ValueError: the description is invalid.
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
