"""Put image tokens for pictures into prompts, as the bundle's metadata describes.

In: the metadata of a program that reads pictures, a prompt, the grid of each picture
(the rows and columns of its parts). Out: the prompt with one image token for each
embedding that the model computes from a picture.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Final, cast

from kvc.runtime.embedding.patches import grid_of
from kvc.runtime.sessions.methods import Callables, impossible, parsed
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

EMBED_PICTURE: Final = "embed_image"
EMBED_TOKENS: Final = "embed_tokens"
PREFILL: Final = "prefill_embeds"
_PLACES: Final = "picture_places"
_GRIDS: Final = "grids"
_SIZED: Final = "sized"
_MOST_SIDE: Final = 1 << 6  # the greatest side of a group, and of a window


@frozen
class Sized:
    """Settings of models that read pictures at various sizes.

    Attributes:
        merge: the number of patches along a side of a group; a group becomes one
            embedding.
        window: the number of groups along a side of an attention window; 0 if all
            patches attend to each other.
    """

    merge: int
    window: int


@frozen
class PicturePlaces:
    """How a prompt stands for pictures: the image token, and texts around its copies.

    Attributes:
        token: the image token; a prompt has one image token for each embedding.
        positions: the number of image tokens of a picture. For pictures that are read
            in parts, the number of image tokens of each part. For pictures of various
            sizes, the greatest number of image tokens.
        placeholder: the text that stands for a picture in a prompt; None if texts
            cannot stand for pictures.
        expansion: the text that replaces the placeholder; it has all image tokens of a
            picture. None if the replacement depends on the picture's grid.
        grids: for pictures that are read in parts, grid -> the texts before, between
            and after the image tokens of the parts. A grid is a text such as "2x3".
            None if pictures are not divided into parts.
        sized: the settings for pictures of various sizes, which have one image token
            for each group of patches. None if all pictures have the same size.
    """

    token: int
    positions: int
    placeholder: str | None
    expansion: str | None
    grids: Mapping[str, Sequence[str]] | None = None
    sized: "Sized | None" = None

    def in_text(self, prompt: str, pictures: Sequence[str]) -> str:
        """Return a text in which each placeholder is replaced by image tokens.

        `pictures` has the grid of each picture.

        Raises:
            BadSetting: the numbers of placeholders and pictures differ.
        """
        ways = self.expansion, self.grids, self.sized
        if self.placeholder is None or all(way is None for way in ways):
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
        if self.sized is not None:
            return placeholder * self.count_of(grid)
        assert self.expansion is not None, "in_text checked it"
        return self.expansion

    def in_tokens(
        self,
        prompt: Sequence[int],
        pictures: Sequence[str],
        encode: Callable[[str], Sequence[int]],
    ) -> tuple[int, ...]:
        """Return a prompt with all image tokens; a complete prompt stays unchanged.

        Args:
            prompt: the tokens of the prompt, with one image token for each picture or
                for each embedding.
            pictures: the grid of each picture.
            encode: returns the tokens of a text that stands inside a prompt.

        Raises:
            BadSetting: the number of image tokens does not fit the pictures.
        """
        found = prompt.count(self.token)
        if found == sum(map(self.count_of, pictures)):
            return tuple(prompt)
        self._check(found, len(pictures), f"the token {self.token}")
        given, made = iter(pictures), list[int]()
        for token in prompt:
            made += (
                self._tokens_of(next(given), encode) if token == self.token else [token]
            )
        return tuple(made)

    def count_in(self, text: str) -> int:
        """Return how many picture placeholders a text has."""
        return 0 if self.placeholder is None else text.count(self.placeholder)

    def count_of(self, grid: str) -> int:
        """Return how many image tokens a picture has, in all parts together."""
        if self.sized is not None:
            rows, columns = grid_of(grid)
            return rows * columns
        return self.positions * self.parts_of(grid)

    def parts_of(self, grid: str) -> int:
        """Return how many parts a picture has."""
        return 1 if self.grids is None else len(self.grids[grid]) - 1

    def _tokens_of(
        self, grid: str, encode: Callable[[str], Sequence[int]]
    ) -> Sequence[int]:
        if self.grids is None:
            return [self.token] * self.count_of(grid)
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


def places_of(program: Callables) -> PicturePlaces | None:
    """Return how prompts stand for pictures; None for a program without pictures.

    Raises:
        BadSetting: the description in the bundle's metadata is invalid.
    """
    found = parsed(program.metadata, _PLACES)
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
            methods = {EMBED_PICTURE, EMBED_TOKENS, PREFILL}
            grids = others.get(_GRIDS)
            sound = grids is None or _are_grids(grids, placeholder)
            sized = _sized_of(others.get(_SIZED))
            sound = sound and (sized is None) == (others.get(_SIZED) is None)
            if sound and methods <= set(program.methods):
                said = cast("Mapping[str, Sequence[str]] | None", grids)
                return PicturePlaces(
                    token, positions, placeholder, expansion, said, sized
                )
    raise impossible(program.metadata, _PLACES)


def _sized_of(found: object) -> Sized | None:
    """Return the settings for pictures of various sizes, None if they are invalid."""
    match found:
        case {"merge": int(merge), "window": int(window)} if (
            0 < merge <= _MOST_SIDE and 0 <= window <= _MOST_SIDE
        ):
            return Sized(merge, window)
    return None


def _are_grids(grids: object, placeholder: str | None) -> bool:
    """Tell whether `grids` maps each grid to a list of the texts around its parts."""
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
