"""Prompts with pictures: where these go, and the embeddings fed in their places.

In: a session of a program that reads pictures, a prompt, pictures. Out: tokens, in
which each picture has as many places as the model makes embeddings of it, and a
`Picturing`, which gives the embeddings of any part of the prompt. It holds those of one
picture at a time, or of one of the parts that a picture is read in.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import numpy.typing as npt

from kvc.runtime.arrays import Array
from kvc.runtime.calls.chunks import Chunk, ChunkSizes, chunk_sizes, plan_chunks
from kvc.runtime.embedding.parts import InParts, parts_preparation_of
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
_PREFILL_PICTURE: Final = "prefill_picture"
PICTURES: Final = "pictures"
_PLACES: Final = "picture_places"
_GRIDS: Final = "grids"


@frozen
class Places:
    """Where a prompt has pictures.

    Attributes:
        token: that stands in each place.
        positions: how many places a picture has.
        placeholder: what a text has for a picture; None: nothing says it.
        expansion: what takes its place, which becomes so many of these tokens.
        grids: of pictures that are read in parts, the texts around the places of each
            part, by rows and columns; None: a picture is one.
    """

    token: int
    positions: int
    placeholder: str | None
    expansion: str | None
    grids: Mapping[str, Sequence[str]] | None = None

    def in_text(self, prompt: str, pictures: Sequence[str]) -> str:
        """Return a text with all places of its pictures, given the grid of each.

        Raises:
            BadSetting: it has another number of pictures.
        """
        if self.placeholder is None or (self.expansion is None and self.grids is None):
            return prompt
        count = prompt.count(self.placeholder)
        self._check(count, len(pictures), repr(self.placeholder))
        texts = prompt.split(self.placeholder)
        expanded = [self._expanded(self.placeholder, grid) for grid in pictures]
        pairs = zip_longest(texts, expanded, fillvalue="")
        return "".join(text + picture for text, picture in pairs)

    def _expanded(self, placeholder: str, grid: str) -> str:
        if self.grids is not None:
            return (placeholder * self.positions).join(self.grids[grid])
        assert self.expansion is not None, "there is one or the other"
        return self.expansion

    def in_tokens(
        self,
        prompt: Sequence[int],
        pictures: Sequence[str],
        encode: Callable[[str], Sequence[int]],
    ) -> tuple[int, ...]:
        """Return tokens with all places of their pictures, which may be there already.

        Args:
            prompt: the tokens.
            pictures: the grid of each.
            encode: makes tokens of a text within a prompt.

        Raises:
            BadSetting: there are places for another number of pictures.
        """
        found = prompt.count(self.token)
        if found == self.positions * sum(map(self.parts_of, pictures)):
            return tuple(prompt)
        self._check(found, len(pictures), f"the token {self.token}")
        given, made = iter(pictures), list[int]()
        for token in prompt:
            made += (
                self._tokens_of(next(given), encode) if token == self.token else [token]
            )
        return tuple(made)

    def parts_of(self, grid: str) -> int:
        """Return how many parts a picture has."""
        return 1 if self.grids is None else len(self.grids[grid]) - 1

    def _tokens_of(
        self, grid: str, encode: Callable[[str], Sequence[int]]
    ) -> Sequence[int]:
        if self.grids is None:
            return [self.token] * self.positions
        assert self.placeholder is not None, "grids come with one"
        return encode(self._expanded(self.placeholder, grid))

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
        grids: of each picture in how many parts it is, as `Places` names it.
    """

    def __init__(
        self, session: Session, places: Places, pictures: Sequence[InParts]
    ) -> None:
        self._sizes = _chunk_sizes(session, _PREFILL)
        self._joined: ChunkSizes | None = None
        if _PREFILL_PICTURE in session.methods:
            self._joined = _chunk_sizes(session, _PREFILL_PICTURE)
            _check_joined(self._joined, places)
        self.grids = [picture.grid for picture in pictures]
        self._session, self._places = session, places
        self._pixels = [part for picture in pictures for part in picture.pixels]
        graph = session.methods[_PREFILL].graph
        self._width = graph.values[graph.inputs[0]].type.dims[-1:]
        self._shown: tuple[int, Floats] | None = None

    def plan(self, prompt: Sequence[int]) -> list[Chunk]:
        """Return the calls for a prompt, in their order.

        Where the places of a picture see each other, each picture is a call.

        Raises:
            BadSetting: such pictures have places that do not lie side by side, or with
                nothing between them: they would be others, or one.
        """
        if self._joined is None:
            return plan_chunks(len(prompt), (), self._sizes)
        planned, token = list[Chunk](), self._places.token
        for shown, part in groupby(prompt, lambda one: one == token):
            count = len(list(part))
            if not shown:
                planned += plan_chunks(count, (), self._sizes)
            elif count == self._joined.most:
                planned.append(Chunk(self._joined.method, count))
            else:
                expected = (
                    f"the token {token} {self._joined.most} times in a row for each "
                    "picture, whose places see each other, and another token between "
                    "two pictures"
                )
                found = f"{count} times in a row"
                raise BadSetting(name="prompt", expected=expected, found=found)
        return planned

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
        """Return embeddings float32 [positions, width] of a picture, or of a part."""
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


def _chunk_sizes(session: Session, method: str) -> ChunkSizes:
    return chunk_sizes(session.methods[method], session.symbols, session.longest_call)


def _check_joined(sizes: ChunkSizes, places: Places) -> None:
    """Check that the method of pictures that are one call takes one of them.

    Raises:
        BadSetting: it does not.
    """
    if not sizes.least == sizes.most == places.positions:
        expected = f"a method {sizes.method} of {places.positions} embeddings"
        found = f"{sizes.least} to {sizes.most}"
        raise BadSetting(name="the bundle", expected=expected, found=found)


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
            **others,
        } if token >= 0 and positions > 0 and placeholder != "":
            methods = {_EMBED_PICTURE, _EMBED_TOKENS, _PREFILL}
            grids = others.get(_GRIDS)
            sound = grids is None or _are_grids(grids, placeholder)
            if sound and methods <= set(session.methods):
                said = cast("Mapping[str, Sequence[str]] | None", grids)
                return Places(token, positions, placeholder, expansion, said)
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
    if places.grids is None:
        whole = pixels_for(session, method, listed)
        return Picturing(session, places, [InParts("", (one,)) for one in whole])
    preparation = parts_preparation_of(_settings(session))
    size = _size_of(method)
    made = [preparation.parts(one, size) for one in listed]
    for one in made:
        _check_grid(places.grids, one)
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
    preparation = preparation_of(_settings(session))
    size = _size_of(method)
    check_prepared(preparation, size)
    return [pixels_of(preparation, one, size) for one in pictures]


def _settings(session: Session) -> Mapping[str, object]:
    """Return what a bundle says of how pixels are made, empty where it says nothing."""
    said = parsed(session.metadata, PICTURES)
    return said if isinstance(said, dict) else {}


def _are_grids(grids: object, placeholder: str | None) -> bool:
    """Tell whether these are texts around the places of parts."""
    return (
        placeholder is not None
        and isinstance(grids, dict)
        and all(
            isinstance(texts, list)
            and len(texts) > 1
            and all(isinstance(one, str) and placeholder not in one for one in texts)
            for texts in grids.values()
        )
    )


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
