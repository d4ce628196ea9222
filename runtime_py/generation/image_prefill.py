"""Prefill prompts with pictures: compute embeddings in place of image tokens.

In: a session of a program that reads pictures, prompts with one image token for each
embedding, and the pictures of each prompt. Out: a `Picturing`, which plans the calls
for prompts, and computes the embeddings for each call. The `Picturing` caches for each
row the embeddings of one picture, or of one part of a picture, at a time.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.calls.chunks import ChunkSizes, chunk_sizes, plan_chunks
from kvc.runtime.embedding.parts import InParts
from kvc.runtime.embedding.patches import Ids, grid_of, places_in, windows_in
from kvc.runtime.generation.picture_places import (
    EMBED_PICTURE,
    EMBED_TOKENS,
    PREFILL,
    PicturePlaces,
    Sized,
)
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

# Positions with several axes, for pictures of various sizes (Qwen2-VL)


NUMBERS: Final = 4  # numbers of a token: time, row, column, and the next position


def positions_of(prompt: Sequence[int], token: int, grids: Sequence[str]) -> Ids:
    """Return the positions of a prompt's tokens, int64 [4, tokens].

    The four numbers of a token are its positions in time, row and column, and the
    position at which the text after the token continues.

    Args:
        prompt: the tokens of the prompt, with one image token for each group of
            patches.
        token: the image token.
        grids: the rows and columns of groups of each picture, such as "2x3".
    """
    made = np.zeros((NUMBERS, len(prompt)), np.int64)
    at, begin, left = 0, 0, iter(grids)
    while at < len(prompt):
        if prompt[at] != token:
            made[:, at] = begin
            begin += 1
            made[-1, at] = begin
            at += 1
            continue
        rows, columns = grid_of(next(left))
        count = rows * columns
        shown = made[:, at : at + count]
        shown[0] = begin
        shown[1] = begin + np.repeat(np.arange(rows), columns)
        shown[2] = begin + np.tile(np.arange(columns), rows)
        begin += max(rows, columns)
        shown[3] = begin
        at += count
    return made


# Embeddings of prompts with pictures


Floats = npt.NDArray[np.float32]

_POSITIONS: Final = "positions"
_PREFILL_PICTURE: Final = "prefill_picture"


@frozen
class TokenFeed:
    """The next tokens of each prompt, which run in one call.

    Attributes:
        method: the method that runs the tokens.
        counts: for each row how many tokens run in the call.
    """

    method: str
    counts: tuple[int, ...]


class Picturing:
    """Computes the embeddings of prompts with pictures, part by part.

    Attributes:
        grids: for each row the grid of each picture, a key of `PicturePlaces.grids`.
    """

    def __init__(
        self, session: Session, places: PicturePlaces, rows: Sequence[Sequence[InParts]]
    ) -> None:
        """Store the pictures of each row, and find the methods for them.

        Raises:
            BadSetting: the bundle's methods do not fit each other, or take a single row
                although there are several prompts.
        """
        self._sizes = _chunk_sizes(session, PREFILL, len(rows))
        self._bidirectional: ChunkSizes | None = None
        if _PREFILL_PICTURE in session.methods:
            self._bidirectional = _chunk_sizes(session, _PREFILL_PICTURE, len(rows))
            sizes = self._bidirectional
            if not sizes.least == sizes.most == places.positions:
                expected = f"a method {sizes.method} of {places.positions} embeddings"
                found = f"{sizes.least} to {sizes.most}"
                raise BadSetting(name="the bundle", expected=expected, found=found)
        if (
            places.sized is not None
            and _POSITIONS not in session.methods[PREFILL].input_names
        ):
            expected = f"a method {PREFILL} of {_POSITIONS}, as pictures vary in size"
            raise BadSetting(name="the bundle", expected=expected, found="none")
        self.grids = [[picture.grid for picture in pictures] for pictures in rows]
        self._places = places
        self._rows = [_Embedding(session, places, pictures) for pictures in rows]

    def plan(self, prompts: Sequence[Sequence[int]]) -> list[TokenFeed]:
        """Return the calls for prompts, in running order.

        If the tokens of a picture attend to each other in both directions, the picture
        runs in a call with no other tokens of its row. A row that reaches a picture
        waits until the other rows reach one too, or end.

        Raises:
            BadSetting: the tokens of a picture attend to each other in both directions,
                and are not adjacent or follow another picture directly. The model would
                see two adjacent pictures as one.
        """
        if self._places.sized is not None:
            for prompt, grids in zip(prompts, self.grids, strict=True):
                _check_separate(prompt, self._places, grids)
        if self._bidirectional is None:
            return self._in_chunks([len(prompt) for prompt in prompts])
        queues = [self._parts(prompt, self._bidirectional) for prompt in prompts]
        planned = list[TokenFeed]()
        while any(queues):
            planned += self._in_chunks([_take(queue, shown=False) for queue in queues])
            pictures = tuple(_take(queue, shown=True) for queue in queues)
            if any(pictures):
                planned.append(TokenFeed(self._bidirectional.method, pictures))
        return planned

    def embeddings(
        self,
        prompts: Sequence[Sequence[int]],
        begins: Sequence[int],
        counts: Sequence[int],
    ) -> Floats:
        """Return the embeddings of a part of each prompt, float32 [rows, most, hidden].

        Args:
            prompts: all tokens of each prompt.
            begins: for each prompt the index of the first token of the part.
            counts: for each prompt the number of tokens of the part; shorter rows are
                padded with zeros.

        Raises:
            BadSetting: the embeddings of a picture do not have the declared shape.
            ExecutionError: as `Session.call`.
        """
        given = zip(self._rows, prompts, begins, counts, strict=True)
        parts = [
            row.of(prompt, at, at + n) if n else None for row, prompt, at, n in given
        ]
        if len(parts) == 1 and parts[0] is not None:
            return parts[0][None]
        width = next(part.shape[-1] for part in parts if part is not None)
        made = np.zeros((len(parts), max(counts), width), np.float32)
        for row, part in zip(made, parts, strict=True):
            if part is not None:
                row[: len(part)] = part
        return made

    def positions(
        self,
        prompts: Sequence[Sequence[int]],
        begins: Sequence[int],
        counts: Sequence[int],
    ) -> dict[str, Ids]:
        """Return the positions of a part of each prompt: argument's name -> array.

        The arguments are those of `embeddings`. The array is int64 [rows, 4, longest
        part]. The result is empty if the model does not take positions.
        """
        if self._places.sized is None:
            return {}
        made = np.zeros((len(prompts), NUMBERS, max(counts)), np.int64)
        given = zip(made, prompts, self.grids, begins, counts, strict=True)
        for row, prompt, grids, begin, count in given:
            whole = positions_of(prompt, self._places.token, grids)
            before = whole[-1, begin - 1] if begin else 0
            row[:, :count] = whole[:, begin : begin + count] - before
        return {_POSITIONS: made}

    def _in_chunks(self, counts: Sequence[int]) -> list[TokenFeed]:
        """Return calls that run `counts` tokens of each row."""
        left, planned = list(counts), list[TokenFeed]()
        if not any(left):
            return planned
        for chunk in plan_chunks(max(left), (), self._sizes):
            taken = tuple(min(chunk.count, count) for count in left)
            left = [count - n for count, n in zip(left, taken, strict=True)]
            planned.append(TokenFeed(chunk.method, taken))
        return planned

    def _parts(
        self, prompt: Sequence[int], bidirectional: ChunkSizes
    ) -> deque[tuple[bool, int]]:
        """Return the parts of a prompt, as pairs (is a picture, token count).

        Raises:
            BadSetting: a picture does not have `bidirectional.most` adjacent tokens.
        """
        parts = deque[tuple[bool, int]]()
        for shown, part in groupby(prompt, lambda token: token == self._places.token):
            count = len(list(part))
            if shown and count != bidirectional.most:
                token = self._places.token
                expected = (
                    f"the token {token} {bidirectional.most} times in a row for each "
                    "picture, whose tokens attend to each other, and another token "
                    "between two pictures"
                )
                found = f"{count} times in a row"
                raise BadSetting(name="prompt", expected=expected, found=found)
            parts.append((shown, count))
        return parts


def _take(queue: deque[tuple[bool, int]], shown: bool) -> int:
    """Remove the first part of a queue if it is a picture, or a text, as requested.

    Args:
        queue: the parts, as pairs (is a picture, token count).
        shown: True to remove a picture, False to remove a text.

    Returns:
        The token count of the removed part; 0 if no part was removed.
    """
    if not queue or queue[0][0] != shown:
        return 0
    return queue.popleft()[1]


def _check_separate(
    prompt: Sequence[int], places: PicturePlaces, grids: Sequence[str]
) -> None:
    """Check that each picture's tokens are adjacent, and that pictures are separated.

    Raises:
        BadSetting: the tokens of a picture are not adjacent, or no other token stands
            between two pictures.
    """
    at, wanted = 0, map(places.count_of, grids)
    for token, part in groupby(prompt):
        count = len(list(part))
        if token == places.token and count != next(wanted, 0):
            expected = (
                f"all tokens {token} of each picture side by side, and another token "
                "between two pictures"
            )
            raise BadSetting(name="prompt", expected=expected, found=f"{count} at {at}")
        at += count


def _of_grid(grid: str, sized: Sized) -> list[Array]:
    """Return the inputs that a vision tower takes after the patches of a picture.

    These are the row and column of each patch; and for a tower with attention windows
    the two arrays of `windows_in`.
    """
    places = places_in(grid, sized.merge)
    if not sized.window:
        return [places]
    return [places, *windows_in(grid, sized.merge, sized.window)]


class _Embedding:
    """Computes the embeddings of one row's prompt."""

    def __init__(
        self, session: Session, places: PicturePlaces, pictures: Sequence[InParts]
    ) -> None:
        self._session, self._places = session, places
        self._parts = [
            (picture.grid, part) for picture in pictures for part in picture.pixels
        ]
        sizes = (self._count_of(grid) for grid, _ in self._parts)
        self._ends = list(accumulate(sizes))  # the end of each part among image tokens
        graph = session.methods[PREFILL].graph
        self._width = graph.values[graph.inputs[0]].type.dims[-1:]
        self._shown: tuple[int, Floats] | None = None

    def of(self, prompt: Sequence[int], begin: int, end: int) -> Floats:
        """Return the embeddings of a prompt's tokens, float32 [end - begin, hidden]."""
        part = np.array([prompt[begin:end]], np.int64)
        made: Floats = self._call(EMBED_TOKENS, [part], part.shape)[0]
        token = self._places.token
        place = prompt[:begin].count(token)
        for i, found in enumerate(part[0]):
            if found == token:
                number = bisect_right(self._ends, place)
                shown = self._picture(number)
                made[i] = shown[place - self._ends[number]]  # a negative index
                place += 1
        return made

    def _count_of(self, grid: str) -> int:
        """Return how many image tokens each part of a picture has, given its grid.

        A picture that is read as a whole is a single part.
        """
        places = self._places
        return places.positions if places.sized is None else places.count_of(grid)

    def _picture(self, number: int) -> Floats:
        """Return the embeddings of part `number` of the row's pictures.

        Pictures that are not read in parts count as one part. The result is float32
        [image tokens, width].
        """
        if self._shown is None or self._shown[0] != number:
            grid, pixels = self._parts[number]
            given: list[Array] = [pixels[None]]
            if self._places.sized is not None:
                given = [pixels, *_of_grid(grid, self._places.sized)]
            made = self._call(EMBED_PICTURE, given, (self._count_of(grid),))
            self._shown = number, made
        return self._shown[1]

    def _call(
        self, method: str, given: Sequence[Array], count: tuple[int, ...]
    ) -> Floats:
        """Call a method, and return the embeddings, float32 [*count, width].

        Raises:
            BadSetting: the method returns an array of another shape.
        """
        made: object = self._session.call(method, *given)
        shape = (*count, *self._width)
        if not isinstance(made, np.ndarray) or made.shape != shape:
            what = f"a method {method} that returns {list(shape)}"
            found = f"{getattr(made, 'shape', type(made).__name__)}"
            raise BadSetting(name="the bundle", expected=what, found=found)
        return made


def _chunk_sizes(session: Session, name: str, rows: int) -> ChunkSizes:
    """Return how many tokens a call of a method can take in each row.

    Raises:
        BadSetting: there are several rows, but the method takes a single row.
    """
    method = session.methods[name]
    if rows > 1 and method.row_lengths is None:
        expected = f"a method {name} of rows of different lengths"
        raise BadSetting(name="the bundle", expected=expected, found="one of one row")
    return chunk_sizes(method, session.symbols, session.longest_call)


def picturing_of(
    session: Session, places: PicturePlaces | None, rows: Sequence[Sequence[InParts]]
) -> Picturing | None:
    """Return the `Picturing` of prompts, None if no prompt has pictures.

    Args:
        session: the session that runs the prompts.
        places: how prompts stand for pictures; None if the program reads no pictures.
        rows: the pictures of each prompt.

    Raises:
        BadSetting: the methods of the bundle do not fit each other.
    """
    if places is None or not any(rows):
        return None
    return Picturing(session, places, rows)
