"""Split pictures of any size into groups of patches, as Qwen2-VL does.

A patch is a small square of the picture; a group is a square of neighboring patches,
which become one embedding. In: a picture, settings of the model's
preprocessor_config.json. Out: the groups of patches, row by row, as the processors of
Qwen2-VL and Qwen2.5-VL make them; also the position of each patch, and the patches of
each attention window. Sizes are checked before a picture is enlarged.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import numpy.typing as npt

from kvc.runtime.embedding.parts import InParts
from kvc.runtime.embedding.pictures import (
    PATCHES,
    Preparation,
    check_pixels,
    image_of,
    preparation_of,
)
from kvc.schema.errors import BadPicture, BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.pictures import MOST_PATCH, MOST_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Resampling

Ids = npt.NDArray[np.int64]

_MOST_RATIO: Final = 200  # the greatest ratio of a picture's sides


@frozen
class PatchesPreparation:
    """The settings for splitting a picture into patches.

    Attributes:
        least, most: the least and greatest number of pixels of the resized picture.
        side: the height and width of a patch in pixels.
        merge: the number of patches along a side of a group.
        frames: how many times a patch repeats the same pixels, as if a video had that
            many equal frames.
        of_whole: the settings for the pixels of the resized picture.
    """

    least: int
    most: int
    side: int
    merge: int
    frames: int
    of_whole: Preparation

    def patches(self, picture: object, most_groups: int) -> InParts:
        """Return the patches of a picture that is given as a file or as an image.

        Args:
            picture: the path of a file, or a Pillow image.
            most_groups: the greatest number of groups that the model takes.

        Raises:
            BadPicture: the picture's aspect ratio is too extreme, or the picture has
                too many groups.
            BadPicture, FileProblem, MissingPackage: as `read_picture`.
        """
        name, image = image_of(picture)
        height, width = self._sides(image.height, image.width, name)
        check_pixels(width, height, name, "once it is resized, ")
        way = cast("Resampling", self.of_whole.resampling)
        pixels = self.of_whole.scaled(image.resize((width, height), resample=way))
        group = self.side * self.merge
        rows, columns = height // group, width // group
        if rows * columns > most_groups:
            reason = (
                f"it becomes {rows} x {columns} groups of patches, and the bundle "
                f"takes {most_groups}"
            )
            raise BadPicture(path=name, reason=reason, most=MOST_PIXELS)
        shape = 3, rows, self.merge, self.side, columns, self.merge, self.side
        parts = pixels.reshape(shape).transpose(1, 4, 2, 5, 0, 3, 6)
        again = np.repeat(parts[:, :, :, :, :, None], self.frames, axis=5)
        groups = again.reshape(rows * columns, self.merge**2, -1)
        return InParts(f"{rows}x{columns}", (np.ascontiguousarray(groups),))

    def _sides(self, height: int, width: int, name: str) -> tuple[int, int]:
        """Return the height and width of the resized picture.

        Raises:
            BadPicture: the picture's aspect ratio is too extreme.
        """
        if max(height, width) > _MOST_RATIO * min(height, width):
            reason = (
                f"{width} x {height} pixels exceed the aspect ratio {_MOST_RATIO} to 1"
            )
            raise BadPicture(path=name, reason=reason, most=MOST_PIXELS)
        group = self.side * self.merge
        tall, wide = (round(side / group) * group for side in (height, width))
        if tall * wide > self.most:
            less = math.sqrt((height * width) / self.most)
            return tuple(  # type: ignore[return-value]  # two
                max(group, math.floor(side / less / group) * group)
                for side in (height, width)
            )
        if tall * wide < self.least:
            more = math.sqrt(self.least / (height * width))
            return tuple(  # type: ignore[return-value]  # two
                math.ceil(side * more / group) * group for side in (height, width)
            )
        return tall, wide


def grid_of(grid: str) -> tuple[int, int]:
    """Return the numbers of rows and columns in a text such as "2x3"."""
    rows, columns = grid.split("x")
    return int(rows), int(columns)


def places_in(grid: str, merge: int) -> Ids:
    """Return each patch's row and column in the picture.

    Args:
        grid: the rows and columns of groups, such as "2x3".
        merge: the number of patches along a side of a group.

    Returns:
        int64 [groups, merge * merge, 2].
    """
    rows, columns = grid_of(grid)
    sides = np.meshgrid(
        *(np.arange(side * merge) for side in (rows, columns)), indexing="ij"
    )
    both = np.stack(sides, axis=-1).reshape(rows, merge, columns, merge, 2)
    return both.transpose(0, 2, 1, 3, 4).reshape(rows * columns, merge**2, 2)


def windows_in(grid: str, merge: int, window: int) -> tuple[Ids, Ids]:
    """Return which patches each attention window has, and where each patch is in there.

    Args:
        grid: the rows and columns of groups, such as "2x3".
        merge: the number of patches along a side of a group.
        window: the number of groups along a side of a window.

    Returns:
        The numbers of the patches in each window, int64 [windows, patches], padded with
        -1; and the index of each patch in the first array, flattened, int64 [groups,
        patches].
    """
    rows, columns = grid_of(grid)
    size, places = merge**2, window**2 * merge**2
    across = -(-columns // window)
    windows = np.full((-(-rows // window) * across, places), -1, np.int64)
    back = np.zeros((rows * columns, size), np.int64)
    filled = np.zeros(len(windows), np.int64)
    for group in range(rows * columns):
        row, column = divmod(group, columns)
        number = row // window * across + column // window
        at = int(filled[number])
        windows[number, at : at + size] = np.arange(group * size, (group + 1) * size)
        back[group] = np.arange(number * places + at, number * places + at + size)
        filled[number] += size
    return windows, back


def patches_preparation_of(found: Mapping[str, object]) -> PatchesPreparation:
    """Return a bundle's settings for the patches of pictures.

    Raises:
        BadSetting: the settings are missing or invalid.
    """
    rest = {name: value for name, value in found.items() if name != PATCHES}
    match found.get(PATCHES):
        case {
            "least": int(least),
            "most": int(most),
            "side": int(side),
            "merge": int(merge),
            "frames": int(frames),
        } if 0 < least <= most <= MOST_PIXELS and all(
            0 < one <= MOST_PATCH for one in (side, merge, frames)
        ):
            whole = preparation_of(rest)
            return PatchesPreparation(least, most, side, merge, frames, whole)
    raise BadSetting(
        name="the bundle's metadata pictures",
        expected="settings of patches, from the preprocessor_config.json in the "
        "model's folder when it was compiled",
        found=repr(found.get(PATCHES))[:80],
    )
