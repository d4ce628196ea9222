"""Pictures as processors of transformers make them, for the rows of a call.

In: `pixel_values`, for pictures of sizes of their own `image_grid_thw`, and the tokens
of the rows. Out: the pictures of each row, as kvc's methods take them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation.picture_places import PicturePlaces
from kvc.schema.errors import BadSetting

Given = tuple[Tensor, Tensor | None]  # pixels, and the grid of each picture


def of_rows(
    places: PicturePlaces, tokens: Tensor, pixels: Tensor, grids: Tensor | None
) -> list[Given]:
    """Return the pixels of each row, and the grids of its pictures.

    Args:
        places: how prompts stand for pictures.
        tokens: int64 [rows, n], with an image token for each embedding.
        pixels: float32 [pictures, channels, height, width], or [rows, parts, ...], or
            for pictures of sizes of their own [patches, width], all rows one after the
            other.
        grids: int64 [pictures, 3], the frames, rows and columns of patches.

    Raises:
        BadSetting: there are not as many pictures as the tokens stand for.
    """
    counts = (tokens == places.token).sum(dim=1).tolist()
    if places.sized is not None:
        return _sized(counts, pixels, grids, places.sized.merge)
    most = [-(-count // places.positions) for count in counts]
    if pixels.dim() == 5:
        if len(pixels) != len(counts) or max(most) > pixels.shape[1]:
            raise _unlike(sum(most), f"{list(pixels.shape[:2])}")
        return [(row[:n], None) for row, n in zip(pixels, most, strict=True)]
    if pixels.dim() != 4 or len(pixels) != sum(most):
        raise _unlike(sum(most), f"{list(pixels.shape)}")
    return [(one, None) for one in torch.split(pixels, most)]


def _sized(
    counts: Sequence[int], pixels: Tensor, grids: Tensor | None, merge: int
) -> list[Given]:
    """Return the patches and grids of each row."""
    if grids is None:
        expected = "the rows and columns of each picture, as the processor says them"
        raise BadSetting(name="image_grid_thw", expected=expected, found=None)
    sizes = [int(frames * rows * cols) for frames, rows, cols in grids.tolist()]
    if pixels.dim() != 2 or len(pixels) != sum(sizes):
        raise _unlike(len(sizes), f"{list(pixels.shape)}")
    made, picture, patch = list[Given](), 0, 0
    for count in counts:
        first, begin = picture, patch
        while count > 0 and picture < len(sizes):
            count -= sizes[picture] // merge**2
            patch += sizes[picture]
            picture += 1
        if count:
            raise _unlike(len(sizes), "other places in the prompt")
        made.append((pixels[begin:patch], grids[first:picture]))
    return made


def in_parts(places: PicturePlaces, given: Given) -> list[InParts]:
    """Return the pictures of one row."""
    pixels, grids = given
    if places.sized is None or grids is None:
        parts = tuple(one.float().numpy() for one in pixels)
        return [InParts("", parts)] if parts else []
    merge, made, at = places.sized.merge, list[InParts](), 0
    for frames, rows, columns in grids.tolist():
        if frames != 1:
            expected = "1 frame: the bundle takes no videos"
            raise BadSetting(name="image_grid_thw", expected=expected, found=frames)
        shown = pixels[at : at + rows * columns].float().numpy()
        groups = shown.reshape(-1, merge**2, shown.shape[-1])
        made.append(InParts(f"{rows // merge}x{columns // merge}", (groups,)))
        at += rows * columns
    return made


def repeated(given: Sequence[Given], times: int) -> Given:
    """Return pixels and grids of all rows, each row repeated."""
    again = [one for one in given for _ in range(times)]
    grids = [grid for _, grid in again if grid is not None]
    return torch.cat([pixels for pixels, _ in again]), torch.cat(
        grids
    ) if grids else None


def _unlike(expected: int, found: str) -> BadSetting:
    return BadSetting(
        name="pixel_values",
        expected=f"{expected} pictures or parts, as the tokens of the prompt have",
        found=found,
    )
