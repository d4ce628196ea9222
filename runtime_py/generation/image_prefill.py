"""Prompts with pictures: the embeddings that are fed in the places of these.

In: a session of a program that reads pictures, prompts with all their places, the
pictures of each. Out: a `Picturing`, which says in which calls prompts run, and gives
the embeddings of each. Of a row it holds those of one picture at a time, or of one of
the parts that a picture is read in.
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

# Positions with axes, of prompts whose pictures have sizes of their own (Qwen2-VL).


NUMBERS: Final = 4  # of a token: time, row, column, and what follows


def positions_of(prompt: Sequence[int], token: int, grids: Sequence[str]) -> Ids:
    """Return int64 [4, tokens], counted from the first one.

    Args:
        prompt: tokens, with one for each group of patches of each picture.
        token: that stands in these places.
        grids: rows and columns of groups of each picture.
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


# Prompts with pictures: the embeddings that are fed in the places of these.


Floats = npt.NDArray[np.float32]

_POSITIONS: Final = "positions"
_PREFILL_PICTURE: Final = "prefill_picture"


@frozen
class TokenFeed:
    """Some of each prompt's tokens, run in one call.

    Attributes:
        method: that runs them.
        counts: how many of each row come next.
    """

    method: str
    counts: tuple[int, ...]


class Picturing:
    """Gives the embeddings of prompts with pictures, part by part.

    Attributes:
        grids: of each row's pictures in how many parts they are, as `PicturePlaces`
        says it.
    """

    def __init__(
        self, session: Session, places: PicturePlaces, rows: Sequence[Sequence[InParts]]
    ) -> None:
        """Begin with the pictures of each row.

        Raises:
            BadSetting: the bundle's methods do not fit each other, or take one row.
        """
        self._sizes = _chunk_sizes(session, PREFILL, len(rows))
        self._joined: ChunkSizes | None = None
        if _PREFILL_PICTURE in session.methods:
            self._joined = _chunk_sizes(session, _PREFILL_PICTURE, len(rows))
            _check_joined(self._joined, places)
        if places.sized is not None and _POSITIONS not in _inputs(session, PREFILL):
            expected = f"a method {PREFILL} of {_POSITIONS}, as pictures have sizes"
            raise BadSetting(name="the bundle", expected=expected, found="none")
        self.grids = [[picture.grid for picture in pictures] for pictures in rows]
        self._places = places
        self._rows = [_Embedding(session, places, pictures) for pictures in rows]

    def plan(self, prompts: Sequence[Sequence[int]]) -> list[TokenFeed]:
        """Return the calls for prompts, in their order.

        Where the places of a picture see each other, it is run by a call that has
        nothing else of its row. Rows wait there for those whose text is longer.

        Raises:
            BadSetting: such pictures have places that do not lie side by side, or with
                nothing between them: they would be others, or one.
        """
        if self._places.sized is not None:
            for prompt, grids in zip(prompts, self.grids, strict=True):
                _check_apart(prompt, self._places, grids)
        if self._joined is None:
            return self._in_chunks([len(prompt) for prompt in prompts])
        queues = [self._parts(prompt, self._joined) for prompt in prompts]
        planned = list[TokenFeed]()
        while any(queues):
            texts = [_take(queue, shown=False) for queue in queues]
            planned += self._in_chunks(texts)
            pictures = tuple(_take(queue, shown=True) for queue in queues)
            if any(pictures):
                planned.append(TokenFeed(self._joined.method, pictures))
        return planned

    def embeddings(
        self,
        prompts: Sequence[Sequence[int]],
        begins: Sequence[int],
        counts: Sequence[int],
    ) -> Floats:
        """Return embeddings float32 [rows, most, hidden] of a part of each prompt.

        Args:
            prompts: all tokens of them.
            begins: where each part begins.
            counts: how many tokens it has; after them are zeros.

        Raises:
            BadSetting: the program makes something else of a picture than it says.
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
        """Return the positions of a part of each prompt, where they have axes.

        Args are as of `embeddings`.
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
        """Return calls for so many tokens of each row."""
        left, planned = list(counts), list[TokenFeed]()
        if not any(left):
            return planned
        for chunk in plan_chunks(max(left), (), self._sizes):
            taken = tuple(min(chunk.count, count) for count in left)
            left = [count - n for count, n in zip(left, taken, strict=True)]
            planned.append(TokenFeed(chunk.method, taken))
        return planned

    def _parts(
        self, prompt: Sequence[int], joined: ChunkSizes
    ) -> deque[tuple[bool, int]]:
        """Return the texts and pictures of a prompt: whether it is one, its tokens."""
        parts = deque[tuple[bool, int]]()
        for shown, part in groupby(prompt, lambda token: token == self._places.token):
            count = len(list(part))
            if shown and count != joined.most:
                token = self._places.token
                expected = (
                    f"the token {token} {joined.most} times in a row for each picture, "
                    "whose places see each other, and another token between two "
                    "pictures"
                )
                found = f"{count} times in a row"
                raise BadSetting(name="prompt", expected=expected, found=found)
            parts.append((shown, count))
        return parts


def _take(queue: deque[tuple[bool, int]], shown: bool) -> int:
    """Take the first part if it is shown, or is not; return its tokens, else 0."""
    if not queue or queue[0][0] != shown:
        return 0
    return queue.popleft()[1]


def _check_apart(
    prompt: Sequence[int], places: PicturePlaces, grids: Sequence[str]
) -> None:
    """Check that pictures of sizes of their own lie whole, and apart, in a prompt.

    Raises:
        BadSetting: they do not.
    """
    at, wanted = 0, map(places.count_of, grids)
    for token, part in groupby(prompt):
        count = len(list(part))
        if token == places.token and count != next(wanted, 0):
            expected = (
                f"all tokens {token} of each picture side by side, and another token "
                "between two pictures"
            )
            found = f"{count} at {at}"
            raise BadSetting(name="prompt", expected=expected, found=found)
        at += count


def _of_grid(grid: str, sized: Sized) -> list[Array]:
    """Return what a tower takes beside the patches of a picture."""
    places = places_in(grid, sized.merge)
    if not sized.window:
        return [places]
    return [places, *windows_in(grid, sized.merge, sized.window)]


class _Embedding:
    """Gives the embeddings of one row's prompt."""

    def __init__(
        self, session: Session, places: PicturePlaces, pictures: Sequence[InParts]
    ) -> None:
        self._session, self._places = session, places
        self._parts = [
            (picture.grid, part) for picture in pictures for part in picture.pixels
        ]
        sizes = (self._count_of(grid) for grid, _ in self._parts)
        self._ends = list(accumulate(sizes))  # of each part, among all places
        graph = session.methods[PREFILL].graph
        self._width = graph.values[graph.inputs[0]].type.dims[-1:]
        self._shown: tuple[int, Floats] | None = None

    def of(self, prompt: Sequence[int], begin: int, end: int) -> Floats:
        """Return embeddings float32 [end - begin, hidden] of a part of a prompt."""
        part = np.array([prompt[begin:end]], np.int64)
        made: Floats = self._call(EMBED_TOKENS, [part], part.shape)[0]
        token = self._places.token
        place = prompt[:begin].count(token)
        for i, found in enumerate(part[0]):
            if found == token:
                number = bisect_right(self._ends, place)
                shown = self._picture(number)
                made[i] = shown[place - self._ends[number]]  # counted from its end
                place += 1
        return made

    def _count_of(self, grid: str) -> int:
        """Return how many places a part has."""
        places = self._places
        return places.positions if places.sized is None else places.count_of(grid)

    def _picture(self, number: int) -> Floats:
        """Return embeddings float32 [positions, width] of a picture, or of a part."""
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
        """Return so many embeddings, float32 [..., width].

        Raises:
            BadSetting: the method returns something else.
        """
        made: object = self._session.call(method, *given)
        shape = (*count, *self._width)
        if not isinstance(made, np.ndarray) or made.shape != shape:
            what = f"a method {method} that returns {list(shape)}"
            found = f"{getattr(made, 'shape', type(made).__name__)}"
            raise BadSetting(name="the bundle", expected=what, found=found)
        return made


def _inputs(session: Session, method: str) -> Sequence[str]:
    return session.methods[method].input_names


def _chunk_sizes(session: Session, name: str, rows: int) -> ChunkSizes:
    """Return how many embeddings of a row a method takes.

    Raises:
        BadSetting: there are several rows, and it takes one.
    """
    method = session.methods[name]
    if rows > 1 and method.row_lengths is None:
        expected = f"a method {name} of rows of different lengths"
        raise BadSetting(name="the bundle", expected=expected, found="one of one row")
    return chunk_sizes(method, session.symbols, session.longest_call)


def _check_joined(sizes: ChunkSizes, places: PicturePlaces) -> None:
    """Check that the method of pictures that are one call takes one of them.

    Raises:
        BadSetting: it does not.
    """
    if not sizes.least == sizes.most == places.positions:
        expected = f"a method {sizes.method} of {places.positions} embeddings"
        found = f"{sizes.least} to {sizes.most}"
        raise BadSetting(name="the bundle", expected=expected, found=found)


def picturing_of(
    session: Session, places: PicturePlaces | None, rows: Sequence[Sequence[InParts]]
) -> Picturing | None:
    """Return what gives embeddings, None where no prompt has pictures.

    Args:
        session: that runs the prompts.
        places: where a prompt has pictures.
        rows: the pictures of each.

    Raises:
        BadSetting: the methods of the bundle do not fit each other.
    """
    if places is None or not any(rows):
        return None
    return Picturing(session, places, rows)
