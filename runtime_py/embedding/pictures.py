"""Pictures as a model takes them: read, resized, cropped, scaled, as transformers does.

In: files or pictures of Pillow, settings as the model's preprocessor_config.json has
them. Out: pixels float32 [pictures, 3, height, width]. Files may be anybody's: sizes
are checked before a picture is unpacked, and before it is made larger.
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
_RESAMPLINGS: Final = range(6)  # as Pillow numbers them
_ROWS: Final = 16  # of a call
PARTS: Final = "parts"  # of settings, where a picture is more than one
PATCHES: Final = "patches"  # of settings, where a picture has a size of its own


@frozen
class Preparation:
    """How pixels are made of a picture.

    Attributes:
        size: height and width that it is made; None: its shorter side is `shortest`.
        shortest: of the resized picture; with None in `size` too, nothing is resized.
        resampling: the filter, as Pillow numbers them.
        crop: height and width of the middle part that is kept; None: all.
        factor: that numbers from 0 to 255 are multiplied by.
        mean, deviation: of each channel, taken away and divided by; None: neither.
        square: that it is resized to lie in; None: there is none.
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
            BadPicture: it would become too large, as a very narrow one does.
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
        """Return pixels of a picture that has its size already, or is cropped to it."""
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
        """Return the height and width that a picture is made."""
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
    """Return the middle of a picture [height, width, 3]; black where it has none."""
    tall, wide = max(height, values.shape[0]), max(width, values.shape[1])
    above = -(-(tall - values.shape[0]) // 2)
    before = -(-(wide - values.shape[1]) // 2)
    padded = np.zeros((tall, wide, values.shape[2]), np.uint8)
    padded[above : above + values.shape[0], before : before + values.shape[1]] = values
    top = (values.shape[0] - height) // 2 + above
    left = (values.shape[1] - width) // 2 + before
    return padded[top : top + height, left : left + width]


def read_picture(path: str | PathLike[str]) -> "Image":
    """Return a picture in colours, turned as its file says.

    Raises:
        MissingPackage: Pillow is not installed.
        BadPicture: the file is no picture, is damaged, or too large.
        FileProblem: it cannot be read.
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
    name = fspath(path)
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        shown = name or "a file without a name"
        raise FileProblem(path=shown, reason=reason_of(error)) from error
    try:
        picture = Image.open(BytesIO(raw), formats=_FORMATS)
        check_pixels(*picture.size, name)
        return ImageOps.exif_transpose(picture).convert("RGB")
    except BadPicture:
        raise
    except UnidentifiedImageError as error:  # its words name an object of Python's
        reason = "it is no picture" if raw else "it is empty"
        raise BadPicture(path=name, reason=reason, most=MOST_PIXELS) from error
    except Image.DecompressionBombError as error:
        reason = "it has far more pixels"
        raise BadPicture(path=name, reason=reason, most=MOST_PIXELS) from error
    except Exception as error:  # whatever a decoder raises for a damaged file
        reason = f"it is no whole picture ({type(error).__name__}: {error})"
        raise BadPicture(path=name, reason=reason, most=MOST_PIXELS) from error


def check_pixels(width: int, height: int, name: str, when: str = "") -> None:
    """Check that a picture is not too large, and has pixels.

    Raises:
        BadPicture: it is, or has none.
    """
    if not 0 < width * height <= MOST_PIXELS:
        reason = f"{when}it has {width} x {height} pixels"
        raise BadPicture(path=name, reason=reason, most=MOST_PIXELS)


def run_pictures(program: Program, task: str, pictures: object) -> Floats:
    """Return what a method makes of each picture, float32 [pictures, n].

    Raises:
        BadSetting: there are none, or the program is of no such model.
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
    """Return the pixels of a file or a picture.

    Raises:
        BadPicture, FileProblem, MissingPackage: as `read_picture`.
        BadSetting: the bundle makes other sizes than its method takes.
    """
    name, image = image_of(picture)
    pixels = preparation.pixels(image, name)
    check_size(pixels.shape[1:], size, name)
    return pixels


def image_of(picture: object) -> "tuple[str, Image]":
    """Return the name of a file or a picture, and the picture in colours.

    Raises:
        BadPicture, FileProblem, MissingPackage: as `read_picture`.
    """
    if isinstance(picture, str | PathLike):
        name = fspath(picture)
        return name, _in_colours(read_picture(picture), name)
    name = "the picture"
    return name, _in_colours(cast("Image", picture), name)


def _in_colours(picture: "Image", name: str) -> "Image":
    """Return a picture of Pillow in colours, on white where it is transparent.

    transformers' processors do so, too. Of a file `load_image` there leaves out an
    alpha channel, but not which colour is transparent; `read_picture` does the same.

    Raises:
        BadPicture: it is closed, its file is damaged, it is too large, or it is none.
    """
    try:
        check_pixels(*picture.size, name)
        told = picture.info.get("transparency") is not None
        if told or "A" in picture.getbands():
            return _on_white(picture)
        return picture.convert("RGB")
    except BadPicture:
        raise
    except Exception as error:  # it may read its file now, or be of another class
        reason = f"it cannot be used ({type(error).__name__}: {error})"
        raise BadPicture(path=name, reason=reason, most=MOST_PIXELS) from error


def _on_white(picture: "Image") -> "Image":
    from PIL import Image

    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def check_prepared(preparation: Preparation, size: tuple[int, int]) -> None:
    """Check the size that all pictures get, before memory is taken for one.

    Raises:
        BadSetting: the method takes another.
    """
    square = preparation.square
    whole = None if square is None else (square.side, square.side)
    always = preparation.crop or preparation.size or whole
    if always is not None:
        check_size(always, size, "every picture")


def check_size(made: tuple[int, ...], size: tuple[int, int], name: str) -> None:
    """Check that pixels are made as high and wide as the model takes them.

    Raises:
        BadSetting: they are not.
    """
    if made != size:
        expected = f"pictures of {size[0]} x {size[1]}, which the model takes"
        found = f"{made[0]} x {made[1]} of {name}"
        raise BadSetting(name="the bundle", expected=expected, found=found)


def check_pictures(pictures: object, name: str = "pictures") -> Sequence[object]:
    """Return a list of pictures, which is an argument of this name.

    Raises:
        BadSetting: it is none, or has something else in it.
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
    """Return how many rows a method takes, and height and width of each.

    Raises:
        BadSetting: it takes something else than pictures of one size.
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
    """Return how a bundle makes pixels of pictures.

    Raises:
        BadSetting: it does not say it, or says something impossible.
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
            expected="how pixels are made, from the preprocessor_config.json in the "
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
