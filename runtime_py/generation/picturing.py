"""Prompts with pictures: where these go, and the embeddings fed in their places.

In: a session of a program that reads pictures, a prompt, pictures. Out: tokens, in
which each picture has as many places as the model makes embeddings of it, and a
`Picturing`, which gives the embeddings of any part of the prompt. It holds those of one
picture at a time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.arrays import Array
from kvc.runtime.calls.chunks import ChunkSizes, chunk_sizes
from kvc.runtime.embedding.pictures import (
    check_pictures,
    check_prepared,
    pixels_of,
    preparation_of,
)
from kvc.runtime.metadata import impossible, parsed
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.model import Method

if TYPE_CHECKING:
    from kvc.runtime.embedding.pictures import Picture

Floats = npt.NDArray[np.float32]

_EMBED_PICTURE: Final = "embed_image"
_EMBED_TOKENS: Final = "embed_tokens"
_PREFILL: Final = "prefill_embeds"
PICTURES: Final = "pictures"
_PLACES: Final = "picture_places"


@frozen
class Places:
    """Where a prompt has pictures.

    Attributes:
        token: that stands in each place.
        positions: how many places a picture has.
        placeholder: what a text has for a picture; None: nothing says it.
        expansion: what takes its place, which becomes so many of these tokens.
    """

    token: int
    positions: int
    placeholder: str | None
    expansion: str | None

    def in_text(self, prompt: str, pictures: int) -> str:
        """Return a text with all places of its pictures.

        Raises:
            BadSetting: it has another number of pictures.
        """
        if self.placeholder is None or self.expansion is None:
            return prompt
        self._check(prompt.count(self.placeholder), pictures, repr(self.placeholder))
        return prompt.replace(self.placeholder, self.expansion)

    def in_tokens(self, prompt: Sequence[int], pictures: int) -> tuple[int, ...]:
        """Return tokens with all places of their pictures, which may be there already.

        Raises:
            BadSetting: there are places for another number of pictures.
        """
        found = prompt.count(self.token)
        if found == pictures * self.positions:
            return tuple(prompt)
        self._check(found, pictures, f"the token {self.token}")
        return tuple(
            each
            for token in prompt
            for each in (token,) * (self.positions if token == self.token else 1)
        )

    def _check(self, found: int, pictures: int, what: str) -> None:
        if found != pictures:
            expected = {
                0: f"none of {what}, which stands for a picture, as no picture is "
                "given (images=, --image)",
                1: f"{what} once, for the picture",
            }.get(pictures, f"{what} {pictures} times, once for each picture")
            raise BadSetting(name="prompt", expected=expected, found=f"{found}")


class Picturing:
    """Gives the embeddings of a prompt with pictures, part by part.

    Attributes:
        sizes: what the method takes that appends embeddings.
        count: how many pictures there are.
    """

    def __init__(
        self, session: Session, places: Places, pixels: Sequence[Floats]
    ) -> None:
        self.sizes: ChunkSizes = chunk_sizes(
            session.methods[_PREFILL], session.symbols, session.longest_call
        )
        self.count = len(pixels)
        self._session, self._places, self._pixels = session, places, pixels
        graph = session.methods[_PREFILL].graph
        self._width = graph.values[graph.inputs[0]].type.dims[-1:]
        self._shown: tuple[int, Floats] | None = None

    def embeddings(self, prompt: Sequence[int], begin: int, end: int) -> Floats:
        """Return embeddings float32 [1, end - begin, hidden] of a part of a prompt.

        Args:
            prompt: all tokens of it.
            begin: of the part.
            end: of the part.

        Raises:
            BadSetting: the program makes something else of a picture than it says.
            ExecutionError: as `Session.call`.
        """
        part = np.array([prompt[begin:end]], np.int64)
        made = self._call(_EMBED_TOKENS, part, part.shape)
        token, positions = self._places.token, self._places.positions
        place = prompt[:begin].count(token)
        for i, found in enumerate(part[0]):
            if found == token:
                number, row = divmod(place, positions)
                made[0, i] = self._picture(number)[row]
                place += 1
        return made

    def _picture(self, number: int) -> Floats:
        """Return the embeddings of a picture, float32 [positions, width]."""
        if self._shown is None or self._shown[0] != number:
            pixels = self._pixels[number][None]
            made = self._call(_EMBED_PICTURE, pixels, (self._places.positions,))
            self._shown = number, made
        return self._shown[1]

    def _call(self, method: str, given: Array, count: tuple[int, ...]) -> Floats:
        """Return so many embeddings, float32 [..., width].

        Raises:
            BadSetting: the method returns something else.
        """
        made: object = self._session.call(method, given)
        shape = (*count, *self._width)
        if not isinstance(made, np.ndarray) or made.shape != shape:
            what = f"a method {method} that returns {list(shape)}"
            found = f"{getattr(made, 'shape', type(made).__name__)}"
            raise BadSetting(name="the bundle", expected=what, found=found)
        return made


def places_of(session: Session) -> Places | None:
    """Return where the pictures of a prompt go, None for a program without pictures.

    Raises:
        BadSetting: the bundle says something impossible.
    """
    found = parsed(session.metadata, _PLACES)
    if found is None:
        return None
    match found:
        case {
            "token": int(token),
            "positions": int(positions),
            "placeholder": str() | None as placeholder,
            "expansion": str() | None as expansion,
        } if token >= 0 and positions > 0 and placeholder != "":
            methods = {_EMBED_PICTURE, _EMBED_TOKENS, _PREFILL}
            if methods <= set(session.methods):
                return Places(token, positions, placeholder, expansion)
    raise impossible(session.metadata, _PLACES)


def picturing_of(
    session: Session, places: Places | None, pictures: "Sequence[Picture]"
) -> Picturing | None:
    """Return what gives embeddings, None where a prompt has no pictures.

    Raises:
        BadSetting: the program reads no pictures, or something is no picture.
        BadPicture, FileProblem: a file is no picture, or too large a one.
        MissingPackage: Pillow is not installed.
    """
    if isinstance(pictures, list | tuple) and not pictures:
        return None
    listed = check_pictures(pictures, "images")
    if places is None:
        expected = "none: the bundle is of a model that reads no pictures, or was "
        raise BadSetting(
            name="images",
            expected=expected + "compiled without them",
            found=f"{len(listed)}",
        )
    method = session.methods[_EMBED_PICTURE]
    _check_rows(method, places)
    made = pixels_for(session, method, listed)
    return Picturing(session, places, made)


def pixels_for(
    session: Session, method: Method, pictures: Sequence[object]
) -> list[Floats]:
    """Return what a method takes of each picture, float32 [3, height, width].

    Raises:
        BadSetting: the bundle says nothing of it, or something impossible.
        BadPicture, FileProblem: a file is no picture, or too large a one.
        MissingPackage: Pillow is not installed.
    """
    said = parsed(session.metadata, PICTURES)
    preparation = preparation_of(said if isinstance(said, dict) else {})
    size = _size_of(method)
    check_prepared(preparation, size)
    return [pixels_of(preparation, one, size) for one in pictures]


def check_alone(batch: bool, draft: bool) -> None:
    """Check that pictures come with one prompt, and with nothing that cannot see them.

    Raises:
        BadSetting: they do not.
    """
    others = {"a list of prompts": batch, "a draft": draft}
    found = [what for what, there in others.items() if there]
    if found:
        expected = "none, or one prompt alone"
        raise BadSetting(name="images", expected=expected, found=f"{found[0]}, too")


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


def _check_rows(method: Method, places: Places) -> None:
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
