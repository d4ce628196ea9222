"""Split pictures into square tiles, and add the whole picture at a tile's size.

In: a picture, settings of the model's preprocessor_config.json. Out: `InParts`: the
pixels of each tile, row by row, then the pixels of the whole picture, shrunk or
enlarged to the size of a tile. Pixels are the same as from the processors of Idefics 3
and SmolVLM in transformers. Sizes are checked before a picture is enlarged.
"""

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, cast

from kvc.runtime.embedding.pictures import (
    PARTS,
    Preparation,
    check_pixels,
    check_size,
    image_of,
    preparation_of,
)
from kvc.runtime.embedding.rows import Floats
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.pictures import MOST_LONGEST

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling


@frozen
class InParts:
    """The preprocessed parts of a picture.

    Attributes:
        grid: the rows and columns of tiles, such as "2x3"; "0x0" for a picture without
            tiles.
        pixels: the pixels of each part, float32 [3, side, side].
    """

    grid: str
    pixels: tuple[Floats, ...]


@frozen
class PartsPreparation:
    """The settings for splitting a picture into parts.

    Attributes:
        longest: the length in pixels of the longer side after resizing; None for no
            resizing.
        side: the height and width of a part in pixels.
        splits: whether the picture is split; if not, the whole picture is the only
            part.
        of_part: the settings for the pixels of a part; they do not resize the part.
    """

    longest: int | None
    side: int
    splits: bool
    of_part: Preparation

    def parts(self, picture: object, size: tuple[int, int]) -> InParts:
        """Return the parts of a picture that is given as a file or as an image.

        Args:
            picture: the path of a file, or a Pillow image.
            size: the height and width that the model takes.

        Raises:
            BadPicture, FileProblem, MissingPackage: as `read_picture`.
            BadSetting: the parts do not have the size that the model takes.
        """
        check_size((self.side, self.side), size, "every part")
        name, image = image_of(picture)
        if self.longest is not None:
            image = self._resized(
                image, *_with_longest(*image.size, self.longest), name
            )
        rows, columns, tiles = 0, 0, list["Image"]()
        if self.splits:
            image = self._resized(image, *_in_tiles(*image.size, self.side), name)
            columns, rows = (length // self.side for length in image.size)
            if (rows, columns) == (1, 1):
                rows = columns = 0
            tiles = [
                self._tile(image, r, c) for r in range(rows) for c in range(columns)
            ]
        tiles.append(self._resized(image, self.side, self.side, name))
        return InParts(f"{rows}x{columns}", tuple(map(self.of_part.scaled, tiles)))

    def _resized(self, image: "Image", width: int, height: int, name: str) -> "Image":
        check_pixels(width, height, name, "once it is resized, ")
        way = cast("Resampling", self.of_part.resampling)
        return image.resize((width, height), resample=way)

    def _tile(self, image: "Image", row: int, column: int) -> "Image":
        left, top = column * self.side, row * self.side
        return image.crop((left, top, left + self.side, top + self.side))


def _with_longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return width and height with the given longer side and an even shorter side."""
    ratio = width / height
    if width >= height:
        shorter = int(longest / ratio)
        return longest, max(shorter + shorter % 2, 1)
    shorter = int(longest * ratio)
    return max(shorter + shorter % 2, 1), longest


def _in_tiles(width: int, height: int, side: int) -> tuple[int, int]:
    """Return width and height rounded up to multiples of `side`.

    The longer side is rounded first. The shorter side follows from it by the picture's
    aspect ratio, and is then rounded.
    """
    ratio = width / height
    if width >= height:
        width = ceil(width / side) * side
        return width, ceil(int(width / ratio) / side) * side
    height = ceil(height / side) * side
    return ceil(int(height * ratio) / side) * side, height


def _is_bound(longest: int | None, splits: bool) -> bool:
    """Tell whether settings limit the number of parts of a picture."""
    return not splits if longest is None else 0 < longest <= MOST_LONGEST


def parts_preparation_of(found: Mapping[str, object]) -> PartsPreparation:
    """Return a bundle's settings for the parts of pictures.

    Raises:
        BadSetting: the settings are missing or invalid.
    """
    rest = {name: value for name, value in found.items() if name != PARTS}
    match found.get(PARTS):
        case {
            "longest": int() | None as longest,
            "side": int(side),
            "splits": bool(splits),
        } if 0 < side <= MOST_LONGEST and _is_bound(longest, splits):
            return PartsPreparation(longest, side, splits, preparation_of(rest))
    raise BadSetting(
        name="the bundle's metadata pictures",
        expected="settings of parts, from the preprocessor_config.json in the model's "
        "folder when it was compiled",
        found=repr(found.get(PARTS))[:80],
    )
