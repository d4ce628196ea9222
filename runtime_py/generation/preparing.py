"""What a caller gives as pictures of prompts, made what the model takes.

In: a session of a program that reads pictures, paths of files or pictures of Pillow.
Out: of each prompt `InParts`, pixels of each picture or of the parts that it is read
in. All is checked before anything runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvc.runtime.embedding.parts import InParts, parts_preparation_of
from kvc.runtime.embedding.patches import PatchesPreparation, patches_preparation_of
from kvc.runtime.embedding.pictures import (
    check_pictures,
    check_prepared,
    pixels_of,
    preparation_of,
)
from kvc.runtime.embedding.rows import Floats
from kvc.runtime.generation.picture_places import EMBED_PICTURE, PicturePlaces, Sized
from kvc.runtime.sessions.methods import parsed
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import BadSetting
from kvc.schema.model import Method
from kvc.schema.types import bounds

PICTURES: Final = "pictures"


def pictures_of(images: object, prompts: int | None) -> list[Sequence[object]]:
    """Return the pictures of each prompt.

    Args:
        images: as a caller gave them; of a batch a list for each prompt, or none.
        prompts: how many a batch has, None for one by itself.

    Raises:
        BadSetting: they are no pictures, or not listed so.
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
    """Return a list of pictures, all of which may be prepared already.

    Raises:
        BadSetting: it is none, or has something else in it.
    """
    if isinstance(images, list) and all(isinstance(one, InParts) for one in images):
        return images
    return check_pictures(images, "images")


def prepared(
    session: Session, places: PicturePlaces | None, pictures: Sequence[object]
) -> list[InParts]:
    """Return pictures as the model takes them; those that are so already stay so.

    Raises:
        BadSetting: the program reads no pictures, or something is no picture.
        BadPicture, FileProblem: a file is no picture, or too large a one.
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
    method = session.methods[EMBED_PICTURE]
    if places.sized is None:
        _check_rows(method, places)
    prepare = _preparing(session, method, places)
    return [one if isinstance(one, InParts) else prepare(one) for one in pictures]


def _preparing(
    session: Session, method: Method, places: PicturePlaces
) -> Callable[[object], InParts]:
    """Return what prepares a picture, or its parts.

    Raises:
        BadSetting: the bundle says nothing of it, or something impossible.
    """
    if places.sized is not None:
        in_patches = patches_preparation_of(_settings(session))
        _check_alike(in_patches, places.sized)
        most = most_groups(session, method)
        return lambda one: in_patches.patches(one, most)
    size, grids = _size_of(method), places.grids
    if grids is None:
        whole = preparation_of(_settings(session))
        check_prepared(whole, size)
        return lambda one: InParts("", (pixels_of(whole, one, size),))
    preparation = parts_preparation_of(_settings(session))

    def prepare(one: object) -> InParts:
        made = preparation.parts(one, size)
        _check_grid(grids, made)
        return made

    return prepare


def pixels_for(
    session: Session, method: Method, pictures: Sequence[object]
) -> list[Floats]:
    """Return what a method takes of each picture, float32 [3, height, width].

    Raises:
        BadSetting: the bundle says nothing of it, or something impossible.
        BadPicture, FileProblem: a file is no picture, or too large a one.
        MissingPackage: Pillow is not installed.
    """
    preparation = preparation_of(_settings(session))
    size = _size_of(method)
    check_prepared(preparation, size)
    return [pixels_of(preparation, one, size) for one in pictures]


def most_groups(session: Session, method: Method) -> int:
    """Return how many groups of patches a method takes.

    Raises:
        BadSetting: it takes something else.
    """
    dims = [method.graph.values[one].type.dims for one in method.graph.inputs]
    made = [method.graph.values[one].type.dims for one in method.graph.outputs]
    match dims, made:
        case [(groups, int(), int()), *_], [(other, _)] if groups == other:
            return bounds(groups, session.symbols)[1]
    expected = f"a method {method.name} of patches [groups, patches, width]"
    raise BadSetting(name="the bundle", expected=expected, found=f"{dims}")


def _check_alike(preparation: PatchesPreparation, sized: Sized) -> None:
    """Check that patches are made in the groups in which the model reads them.

    Raises:
        BadSetting: they are not.
    """
    if preparation.merge != sized.merge:
        expected = f"groups of {sized.merge} x {sized.merge} patches"
        found = f"{preparation.merge} x {preparation.merge}"
        raise BadSetting(name="the bundle", expected=expected, found=found)


def _settings(session: Session) -> Mapping[str, object]:
    """Return what a bundle says of how pixels are made, empty where it says nothing."""
    said = parsed(session.metadata, PICTURES)
    return said if isinstance(said, dict) else {}


def _check_grid(grids: Mapping[str, Sequence[str]], picture: InParts) -> None:
    """Check that a prompt has places for as many parts as a picture was made.

    Raises:
        BadSetting: it does not.
    """
    count = len(picture.pixels)
    texts = grids.get(picture.grid, ())
    if len(texts) != count + 1:
        expected = f"{count + 1} texts around the parts of a picture of {picture.grid}"
        raise BadSetting(name="the bundle", expected=expected, found=f"{len(texts)}")


def check_alone(draft: bool) -> None:
    """Check that pictures come without a draft, which cannot see them.

    Raises:
        BadSetting: there is one.
    """
    if draft:
        raise BadSetting(
            name="images", expected="none beside a draft", found="a draft, too"
        )


def _size_of(method: Method) -> tuple[int, int]:
    """Return the height and the width of pictures.

    Raises:
        BadSetting: the method takes something else.
    """
    graph = method.graph
    shapes = [graph.values[given].type.dims for given in graph.inputs]
    match shapes:
        case [(1, 3, int(height), int(width))]:
            return height, width
    expected = f"a method {method.name} of pixels [1, 3, height, width]"
    raise BadSetting(name="the bundle", expected=expected, found=f"{shapes}")


def _check_rows(method: Method, places: PicturePlaces) -> None:
    """Check that a picture becomes as many embeddings as it has places in a text.

    Raises:
        BadSetting: it does not.
    """
    graph = method.graph
    shapes = [graph.values[made].type.dims for made in graph.outputs]
    match shapes:
        case [(places.positions, _)]:
            return
    expected = f"a method {method.name} that returns {places.positions} embeddings"
    raise BadSetting(name="the bundle", expected=expected, found=f"{shapes}")
