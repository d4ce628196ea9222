"""Preprocess the caller's pictures into the pixels that the model takes.

In: a session of a program that reads pictures, paths of files or Pillow images. Out:
for each prompt a list of `InParts`: the pixels of each picture, or of each part of a
picture. All pictures are checked before any method runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvc.runtime.embedding.parts import InParts, parts_preparation_of
from kvc.runtime.embedding.patches import patches_preparation_of
from kvc.runtime.embedding.pictures import (
    check_pictures,
    check_prepared,
    pixels_of,
    preparation_of,
)
from kvc.runtime.embedding.rows import Floats
from kvc.runtime.generation.picture_places import EMBED_PICTURE, PicturePlaces
from kvc.runtime.sessions.methods import Callables, parsed
from kvc.schema.errors import BadSetting
from kvc.schema.model import Method
from kvc.schema.types import bounds

PICTURES: Final = "pictures"


def pictures_of(images: object, prompts: int | None) -> list[Sequence[object]]:
    """Return the pictures of each prompt.

    Args:
        images: the caller's pictures; for a batch a list of pictures for each prompt.
            Empty for no pictures.
        prompts: the size of a batch, None for a single prompt.

    Raises:
        BadSetting: an item is not a picture, or the lists do not fit the prompts.
    """
    none = isinstance(images, list | tuple) and not images
    if prompts is None:
        return [() if none else _checked(images)]
    if none:
        return [()] * prompts
    listed = images if isinstance(images, list | tuple) else ()
    if len(listed) != prompts or not all(isinstance(p, list | tuple) for p in listed):
        expected = f"a list of pictures for each prompt, {prompts} times"
        raise BadSetting(name="images", expected=expected, found=repr(images)[:80])
    return [_checked(one) if one else () for one in listed]


def _checked(images: object) -> Sequence[object]:
    """Return a list of pictures; some may be preprocessed already.

    Raises:
        BadSetting: the argument is not a list, or an item is not a picture.
    """
    if isinstance(images, list) and all(isinstance(one, InParts) for one in images):
        return images
    return check_pictures(images, "images")


def prepared(
    program: Callables, places: PicturePlaces | None, pictures: Sequence[object]
) -> list[InParts]:
    """Preprocess pictures; pictures that are preprocessed already stay as they are.

    Raises:
        BadSetting: the program reads no pictures, or an item is not a picture.
        BadPicture, FileProblem: a file is not a picture, or is too large.
        MissingPackage: Pillow is not installed.
    """
    if not pictures:
        return []
    if places is None:
        expected = "none: the bundle is of a model that reads no pictures, or was "
        raise BadSetting(
            name="images",
            expected=expected + "compiled without them",
            found=f"{len(pictures)}",
        )
    method = program.methods[EMBED_PICTURE]
    if places.sized is None:
        _check_rows(method, places)
    prepare = _preparing(program, method, places)
    return [one if isinstance(one, InParts) else prepare(one) for one in pictures]


def _preparing(
    program: Callables, method: Method, places: PicturePlaces
) -> Callable[[object], InParts]:
    """Return the function that preprocesses a picture, or its parts.

    Raises:
        BadSetting: the bundle's preprocessing settings are missing or invalid.
    """
    if places.sized is not None:
        in_patches = patches_preparation_of(_settings(program))
        if in_patches.merge != places.sized.merge:
            expected = f"groups of {places.sized.merge} x {places.sized.merge} patches"
            found = f"{in_patches.merge} x {in_patches.merge}"
            raise BadSetting(name="the bundle", expected=expected, found=found)
        most = most_groups(program, method)
        return lambda one: in_patches.patches(one, most)
    size, grids = _size_of(method), places.grids
    if grids is None:
        whole = preparation_of(_settings(program))
        check_prepared(whole, size)
        return lambda one: InParts("", (pixels_of(whole, one, size),))
    preparation = parts_preparation_of(_settings(program))

    def prepare(one: object) -> InParts:
        made = preparation.parts(one, size)
        _check_grid(grids, made)
        return made

    return prepare


def pixels_for(
    program: Callables, method: Method, pictures: Sequence[object]
) -> list[Floats]:
    """Return the pixels of each picture as a method takes them.

    Raises:
        BadSetting: the bundle's preprocessing settings are missing or invalid.
        BadPicture, FileProblem: a file is not a picture, or is too large.
        MissingPackage: Pillow is not installed.
    """
    preparation = preparation_of(_settings(program))
    size = _size_of(method)
    check_prepared(preparation, size)
    return [pixels_of(preparation, one, size) for one in pictures]


def most_groups(program: Callables, method: Method) -> int:
    """Return the greatest number of groups of patches that a method takes.

    Raises:
        BadSetting: the method does not take groups of patches.
    """
    dims = [method.graph.values[one].type.dims for one in method.graph.inputs]
    made = [method.graph.values[one].type.dims for one in method.graph.outputs]
    match dims, made:
        case [(groups, int(), int()), *_], [(other, _)] if groups == other:
            return bounds(groups, program.symbols)[1]
    expected = f"a method {method.name} of patches [groups, patches, width]"
    raise BadSetting(name="the bundle", expected=expected, found=f"{dims}")


def _settings(program: Callables) -> Mapping[str, object]:
    """Return the bundle's preprocessing settings; empty if the bundle has none."""
    said = parsed(program.metadata, PICTURES)
    return said if isinstance(said, dict) else {}


def _check_grid(grids: Mapping[str, Sequence[str]], picture: InParts) -> None:
    """Check that the bundle has the texts that surround the parts of a picture.

    Raises:
        BadSetting: the bundle has no texts for the picture's number of parts.
    """
    count = len(picture.pixels)
    texts = grids.get(picture.grid, ())
    if len(texts) != count + 1:
        expected = f"{count + 1} texts around the parts of a picture of {picture.grid}"
        raise BadSetting(name="the bundle", expected=expected, found=f"{len(texts)}")


def check_alone(draft: bool) -> None:
    """Check that pictures come without a draft: drafts do not read pictures.

    Raises:
        BadSetting: a draft is given.
    """
    if draft:
        raise BadSetting(
            name="images", expected="none beside a draft", found="a draft, too"
        )


def _size_of(method: Method) -> tuple[int, int]:
    """Return the height and the width of pictures.

    Raises:
        BadSetting: the method does not take pixels of one size.
    """
    graph = method.graph
    shapes = [graph.values[given].type.dims for given in graph.inputs]
    match shapes:
        case [(1, 3, int(height), int(width))]:
            return height, width
    expected = f"a method {method.name} of pixels [1, 3, height, width]"
    raise BadSetting(name="the bundle", expected=expected, found=f"{shapes}")


def _check_rows(method: Method, places: PicturePlaces) -> None:
    """Check that a method returns one embedding for each image token of a picture.

    Raises:
        BadSetting: the method returns more or fewer embeddings.
    """
    graph = method.graph
    shapes = [graph.values[made].type.dims for made in graph.outputs]
    match shapes:
        case [(places.positions, _)]:
            return
    expected = f"a method {method.name} that returns {places.positions} embeddings"
    raise BadSetting(name="the bundle", expected=expected, found=f"{shapes}")
