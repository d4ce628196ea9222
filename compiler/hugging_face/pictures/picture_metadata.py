"""Metadata of a bundle about placeholders of pictures in prompts.

In: the texts that a folder's processor makes of pictures, and a model's picture input.
Out: the metadata `picture_places`.
"""

from kvc.compiler.hugging_face.pictures.sized_pictures import PictureInput
from kvc.compiler.hugging_face.reading.picture_places import (
    WHOLE,
    Expansion,
    PicturePlaces,
)


def texts_around(
    places: PicturePlaces, seen: PictureInput, expansion: Expansion
) -> list[str]:
    """Return the texts before, between and after the placeholders in an expansion.

    An expansion is the text that replaces a picture's placeholder in a prompt. The
    texts are those around each whole picture or part of a picture.
    """
    return expansion.text.split(places.placeholder * seen.positions)


def places_said(places: PicturePlaces | None, seen: PictureInput) -> dict[str, object]:
    """Return the metadata that describe the placeholders of pictures."""
    said: dict[str, object] = {
        "token": seen.token,
        "positions": seen.positions,
        "placeholder": places and places.placeholder,
        "expansion": None,
    }
    if seen.tower is not None:
        sized = {"merge": seen.tower.merge, "window": seen.tower.window}
        return {**said, "sized": sized}
    if places is None:
        return said
    if WHOLE in places.expansions:
        return {**said, "expansion": places.expansions[WHOLE].text}
    grids = {
        grid: texts_around(places, seen, expansion)
        for grid, expansion in places.expansions.items()
    }
    return {**said, "grids": grids}
