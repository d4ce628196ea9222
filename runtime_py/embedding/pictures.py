"""Preprocess pictures for a model: read, resize, crop, scale, as transformers does.

In: files or Pillow images, settings of the model's preprocessor_config.json. Out:
pixels float32 [pictures, 3, height, width]. Files are untrusted: sizes are checked
before a picture is unpacked, and before it is enlarged.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Final, Union, cast

import numpy as np
import numpy.typing as npt

from kvc.runtime.embedding.rows import Floats, vectors_of
from kvc.runtime.embedding.settings import PICTURES, method_of, settings_in
from kvc.runtime.embedding.squares import SQUARE, Square, square_of
from kvc.runtime.sessions.program import Program
from kvc.schema.errors import (
    BadPicture,
    BadSetting,
    FileProblem,
    MissingPackage,
    reason_of,
)
from kvc.schema.frozen import frozen
from kvc.schema.pictures import MOST_PIXELS
from kvc.schema.types import bounds

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

Picture = Union[str, PathLike[str], "Image"]

_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_RESAMPLINGS: Final = range(6)  # the numbers of Pillow's filters
_ROWS: Final = 16  # the most pictures of a call
PARTS: Final = "parts"  # the settings key for pictures in several parts
PATCHES: Final = "patches"  # the settings key for pictures of any size


@frozen
class Preparation:
    """The settings for preprocessing a picture.

    Attributes:
        size: the height and width after resizing, in pixels; None to resize by
            `shortest`.
        shortest: the length of the shorter side after resizing, in pixels; the longer
            side keeps the aspect ratio. If `size` is None too, None means no resizing.
        resampling: the number of Pillow's filter for resizing.
        crop: the height and width of the center crop; None for no crop.
        factor: the number by which channel values, 0 to 255, are multiplied.
        mean, deviation: for each channel, the number to subtract and the number to
            divide by; None to do neither.
        square: the square that the resized picture is padded to; None for no padding.
    """

    size: tuple[int, int] | None
    shortest: int | None
    resampling: int
    crop: tuple[int, int] | None
    factor: float
    mean: tuple[float, ...] | None
    deviation: tuple[float, ...] | None
    square: Square | None = None

    def pixels(self, picture: "Image", name: str) -> Floats:
        """Return pixels float32 [3, height, width] of a picture.

        Raises:
            BadPicture: the resized picture would be too large; a very narrow picture
                can become so when its shorter side is enlarged.
        """
        width, height = picture.size
        resized = self._resized(height, width)
        if resized is not None:
            height, width = resized if self.square is None else [max(resized)] * 2
            check_pixels(width, height, name, "once it is resized, ")
            way = cast("Resampling", self.resampling)
            picture = picture.resize((resized[1], resized[0]), resample=way)
        return self.scaled(picture)

    def scaled(self, picture: "Image") -> Floats:
        """Return the pixels of a picture that has been resized already.

        The picture is padded to the square and cropped, if these settings are not None.
        """
        values = np.asarray(picture, np.uint8)
        if self.square is not None:
            values = self.square.around(values)
        if self.crop is not None:
            values = cropped(values, *self.crop)
        scaled = (values.astype(np.float64) * self.factor).astype(np.float32)
        if self.mean is not None and self.deviation is not None:
            mean, deviation = (
                np.array(v, np.float32) for v in (self.mean, self.deviation)
            )
            scaled = (scaled - mean) / deviation
        return np.ascontiguousarray(scaled.transpose(2, 0, 1), np.float32)

    def _resized(self, height: int, width: int) -> tuple[int, int] | None:
        """Return the height and width after resizing; None if there is no resizing."""
        if self.square is not None:
            return self.square.resized(height, width)
        if self.size is not None:
            return self.size
        if self.shortest is None:
            return None
        longest = int(self.shortest * max(height, width) / min(height, width))
        return (longest, self.shortest) if width <= height else (self.shortest, longest)


def cropped(
    values: npt.NDArray[np.uint8], height: int, width: int
) -> npt.NDArray[np.uint8]:
    """Return the center of a picture [height, width, 3]; a smaller picture is padded.

    The padding is black.
    """
    tall, wide = max(height, values.shape[0]), max(width, values.shape[1])
    above = -(-(tall - values.shape[0]) // 2)
    before = -(-(wide - values.shape[1]) // 2)
    padded = np.zeros((tall, wide, values.shape[2]), np.uint8)
    padded[above : above + values.shape[0], before : before + values.shape[1]] = values
    top = (values.shape[0] - height) // 2 + above
    left = (values.shape[1] - width) // 2 + before
    return padded[top : top + height, left : left + width]


def read_picture(path: str | PathLike[str]) -> "Image":
    """Return a picture in RGB, rotated by its EXIF orientation.

    Raises:
        MissingPackage: Pillow is not installed.
        BadPicture: the file is not a picture, is damaged, or is too large.
        FileProblem: the file cannot be read.
    """
    name = fspath(path)
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        shown = name or "a file without a name"
        raise FileProblem(path=shown, reason=reason_of(error)) from error
    return picture_in(raw, name)


def picture_in(raw: bytes, name: str, most: int = MOST_PIXELS) -> "Image":
    """Return the picture that the content of a file holds, as `read_picture`.

    Args:
        raw: the content.
        name: a name for messages.
        most: the greatest number of pixels, if it is less than that of all pictures.

    Raises:
        MissingPackage, BadPicture: as `read_picture`.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise MissingPackage(
            what="reading pictures",
            package="Pillow",
            reason=str(error),
            install="pip install 'pillow>=11'",
        ) from error
    try:
        picture = Image.open(BytesIO(raw), formats=_FORMATS)
        check_pixels(*picture.size, name, most=most)
        return ImageOps.exif_transpose(picture).convert("RGB")
    except BadPicture:
        raise
    except UnidentifiedImageError as error:  # its message names a Python object
        reason = "it is not a picture" if raw else "it is empty"
        raise BadPicture(path=name, reason=reason, most=most) from error
    except Image.DecompressionBombError as error:
        reason = "it has far more pixels"
        raise BadPicture(path=name, reason=reason, most=most) from error
    except Exception as error:  # decoders raise many types for a damaged file
        reason = f"it is not a complete picture ({type(error).__name__}: {error})"
        raise BadPicture(path=name, reason=reason, most=most) from error


def check_pixels(
    width: int, height: int, name: str, when: str = "", most: int = MOST_PIXELS
) -> None:
    """Check that a picture has pixels, and not too many.

    Raises:
        BadPicture: the picture has no pixels, or too many.
    """
    if not 0 < width * height <= most:
        reason = f"{when}it has {width} x {height} pixels"
        raise BadPicture(path=name, reason=reason, most=most)


def run_pictures(program: Program, task: str, pictures: object) -> Floats:
    """Return a result of the program's method for each picture, float32 [pictures, n].

    Raises:
        BadSetting: there are no pictures, or the program's model has a different task.
        BadPicture, FileProblem, MissingPackage: as `read_picture`.
        ExecutionError: as `Program.call`.
    """
    found = settings_in(program, PICTURES, task)
    method, preparation = method_of(program, PICTURES, found), preparation_of(found)
    rows, height, width = _sizes(program, method)
    check_prepared(preparation, (height, width))
    made = list[Floats]()
    listed = check_pictures(pictures)
    for first in range(0, len(listed), min(rows, _ROWS)):
        given = [
            pixels_of(preparation, one, (height, width))
            for one in listed[first : first + min(rows, _ROWS)]
        ]
        made.append(vectors_of(program.call(method, np.stack(given)), len(given)))
    return np.concatenate(made)


def pixels_of(
    preparation: Preparation, picture: object, size: tuple[int, int]
) -> Floats:
    """Return the pixels of a picture that is given as a file or as an image.

    Raises:
        BadPicture, FileProblem, MissingPackage: as `read_picture`.
        BadSetting: the pixels do not have the size that the model takes.
    """
    name, image = image_of(picture)
    pixels = preparation.pixels(image, name)
    check_size(pixels.shape[1:], size, name)
    return pixels


def image_of(picture: object) -> "tuple[str, Image]":
    """Return a name for messages, and the picture in RGB, from a file or an image.

    Raises:
        BadPicture, FileProblem, MissingPackage: as `read_picture`.
    """
    if isinstance(picture, str | PathLike):
        name = fspath(picture)
        return name, _in_colours(read_picture(picture), name)
    name = "the picture"
    return name, _in_colours(cast("Image", picture), name)


def _in_colours(picture: "Image", name: str) -> "Image":
    """Return a Pillow image in RGB; transparent pixels become white.

    The processors of transformers put pictures on white, too. For a file, `load_image`
    of transformers drops an alpha channel but keeps the palette's color of transparent
    pixels, and `read_picture` does the same.

    Raises:
        BadPicture: the picture is closed, damaged or too large, or is not a picture.
    """
    try:
        check_pixels(*picture.size, name)
        transparent = picture.info.get("transparency") is not None
        if transparent or "A" in picture.getbands():
            from PIL import Image

            white = Image.new("RGBA", picture.size, "white")
            return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
        return picture.convert("RGB")
    except BadPicture:
        raise
    except Exception as error:  # a lazy image reads its file now; others may fail, too
        reason = f"it cannot be used ({type(error).__name__}: {error})"
        raise BadPicture(path=name, reason=reason, most=MOST_PIXELS) from error


def check_prepared(preparation: Preparation, size: tuple[int, int]) -> None:
    """Check that preprocessing gives the size that a method takes.

    This is checked before memory is allocated for a picture.

    Raises:
        BadSetting: the method takes pictures of a different size.
    """
    square = preparation.square
    whole = None if square is None else (square.side, square.side)
    always = preparation.crop or preparation.size or whole
    if always is not None:
        check_size(always, size, "every picture")


def check_size(made: tuple[int, ...], size: tuple[int, int], name: str) -> None:
    """Check that pixels have the height and width that the model takes.

    Raises:
        BadSetting: the pixels have a different height or width.
    """
    if made != size:
        expected = f"pictures of {size[0]} x {size[1]}, which the model takes"
        found = f"{made[0]} x {made[1]} of {name}"
        raise BadSetting(name="the bundle", expected=expected, found=found)


def check_pictures(pictures: object, name: str = "pictures") -> Sequence[object]:
    """Return the argument `name` as a list of pictures.

    Raises:
        BadSetting: the argument is not a list of pictures, or is empty.
    """
    if isinstance(pictures, str) or not isinstance(pictures, Sequence) or not pictures:
        found = repr(pictures)[:40]
        raise BadSetting(name=name, expected="a list of pictures", found=found)
    for i, one in enumerate(pictures):
        if not isinstance(one, str | PathLike) and not hasattr(one, "convert"):
            expected, kind = "a path, or a picture of Pillow", type(one).__name__
            raise BadSetting(name=f"{name}[{i}]", expected=expected, found=kind)
    return pictures


def _sizes(program: Program, name: str) -> tuple[int, int, int]:
    """Return how many pictures a method takes, and the pictures' height and width.

    Raises:
        BadSetting: the method does not take pictures of one size.
    """
    graph = program.methods[name].graph
    dims = graph.values[graph.inputs[0]].type.dims if len(graph.inputs) == 1 else ()
    if len(dims) == 4 and dims[1] == 3:
        rows, height, width = dims[0], dims[2], dims[3]
        if isinstance(height, int) and isinstance(width, int):
            return bounds(rows, program.symbols)[1], height, width
    expected = "a method of pixels [batch, 3, height, width]"
    raise BadSetting(name="the bundle", expected=expected, found=name)


def preparation_of(found: Mapping[str, object]) -> Preparation:
    """Return a bundle's settings for preprocessing pictures.

    Raises:
        BadSetting: the settings are missing or invalid.
    """
    try:
        for other in {PARTS, PATCHES} & found.keys():
            raise ValueError(found[other])
        return Preparation(
            size=_pair(found["size"]),
            shortest=None if found["shortest"] is None else _side(found["shortest"]),
            resampling=_RESAMPLINGS.index(cast("int", found["resampling"])),
            crop=_pair(found["crop"]),
            factor=_number(found["factor"]),
            mean=_channels(found["mean"]),
            deviation=_divisors(found["deviation"]),
            square=square_of(found.get(SQUARE)),
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise BadSetting(
            name="the bundle's metadata pictures",
            expected="settings of pixels, from the preprocessor_config.json in the "
            "model's folder when it was compiled",
            found=repr(dict(found))[:80],
        ) from error


def _pair(found: object) -> tuple[int, int] | None:
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 2:
        raise ValueError(found)
    return _side(found[0]), _side(found[1])


def _side(found: object) -> int:
    if type(found) is not int or not 0 < found < 1 << 14:
        raise ValueError(found)
    return found


def _number(found: object) -> float:
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if not number or not isfinite(cast("float", found)):
        raise ValueError(found)
    return float(cast("float", found))


def _channels(found: object) -> tuple[float, ...] | None:
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 3:
        raise ValueError(found)
    return tuple(map(_number, found))


def _divisors(found: object) -> tuple[float, ...] | None:
    divisors = _channels(found)
    if divisors is not None and 0.0 in divisors:
        raise ValueError(found)
    return divisors
