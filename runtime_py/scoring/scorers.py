"""Cut a text into windows, and compute the logits of a window.

In: a text's tokens and a program. Out: a scorer, which returns, for a window, the
logits that predict each of its last tokens. Long texts are cut into overlapping
windows: a token in two windows is scored in the first, and is context in the second. A
method that returns the logits of all positions is the fastest; in programs without such
a method, decode runs the scored tokens one by one.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from kvc.runtime.calls.chunks import ChunkSizes, chunk_sizes, plan_chunks
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.sessions.methods import find_all_logits, find_roles
from kvc.runtime.sessions.program import Program
from kvc.runtime.sessions.session import Session
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSetting, UnusableLogits
from kvc.schema.frozen import frozen
from kvc.schema.model import Method
from kvc.schema.types import symbols_of


@frozen
class TextWindow:
    """A part of a text.

    Attributes:
        begin, end: the index of the window's first token, and the index after the
            window's last token.
        first: the index of the first scored token; the tokens before it are context.
    """

    begin: int
    first: int
    end: int


def cut_windows(
    count: int, length: int, stride: int, has_start: bool
) -> Iterator[TextWindow]:
    """Yield windows in which each token is scored once.

    Without a start token, the first token of the text is not scored, since no token
    precedes it.

    Args:
        count: the number of all tokens.
        length: the length of a window, 2 or more.
        stride: the distance from the start of a window to the start of the next, less
            than `length`.
        has_start: whether each window has a start token before it.

    Raises:
        BadSetting: `length` or `stride` is impossible.
    """
    if length < 2:
        raise BadSetting(name="window", expected="2 tokens or more", found=length)
    if not 1 <= stride < length:
        expected = f"from 1 to {length - 1}, less than the window"
        raise BadSetting(name="stride", expected=expected, found=stride)
    begin, first = 0, 0 if has_start else 1
    while first < count:
        end = min(begin + length, count)
        yield TextWindow(begin, first, end)
        begin, first = begin + stride, end


@frozen
class WindowTokens:
    """The tokens of a window.

    Attributes:
        tokens: the tokens, of which the last are scored.
        first: the index of the first scored token, 1 or more.
    """

    tokens: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        """Return the number of scored tokens."""
        return len(self.tokens) - self.first


def cut_tokens(
    tokens: Sequence[int], start: Sequence[int], length: int, stride: int
) -> Iterator[WindowTokens]:
    """Yield the tokens of the windows of a text.

    Args:
        tokens: the tokens of the text.
        start: tokens at the beginning of each window, which are not scored.
        length: as `cut_windows`.
        stride: as `cut_windows`.

    Raises:
        BadSetting: as `cut_windows`.
    """
    for part in cut_windows(len(tokens), length, stride, bool(start)):
        seen = (*start, *tokens[part.begin : part.end])
        yield WindowTokens(seen, len(start) + part.first - part.begin)


Logits = NDArray[np.float32]


class Scorer(Protocol):
    """Computes the logits of windows.

    Attributes:
        method: the name of the method that returns the logits.
        most: the length of the longest window, None if there is no limit.
    """

    method: str
    most: int | None

    def logits(self, tokens: Sequence[int], first: int) -> Iterator[Logits]:
        """Yield the logits that predict the tokens from `first` on, float32 [n, vocab].

        Args:
            tokens: the tokens of a window.
            first: the index of the first scored token, 1 or more.
        """
        ...


def find_scorer(program: Program, session: Session) -> Scorer:
    """Return the fastest scorer that a program supports.

    Raises:
        UnknownName: the program has neither a method that returns the logits of all
            positions nor the roles "prefill" and "decode".
    """
    generating = {"prefill", "decode"} <= {m.role for m in program.methods.values()}
    appending = find_all_logits(session)
    if appending is not None and generating:
        return ByChunks(session, appending)
    whole = [m for m in program.methods.values() if gives_all_positions(m)]
    alone = [m for m in whole if not m.reads and not m.writes]
    if alone:
        return WholeText(session, alone[0])
    return ByTokens(session)


def gives_all_positions(method: Method) -> bool:
    """Tell whether a method maps tokens int64 [1, n] to logits float32 [1, n, vocab].

    The size of axis 0 may also be the symbol "batch", whose default is 1. An input of
    row lengths is allowed.
    """
    graph = method.graph
    given = [v for i, v in enumerate(graph.inputs) if i != method.row_lengths]
    if len(given) != 1 or len(graph.outputs) != 1:
        return False
    tokens, logits = (graph.values[v].type for v in (*given, *graph.outputs))
    return (
        (tokens.dtype, logits.dtype) == (DType.INT64, DType.FLOAT32)
        and (len(tokens.dims), len(logits.dims)) == (2, 3)
        and tokens.dims == logits.dims[:2]
        and (tokens.dims[0] == 1 or symbols_of(tokens.dims[:1]) == {"batch"})
        and bool(symbols_of(tokens.dims[1:]))
    )


class ByTokens:
    """Runs the context by prefill, then each scored token by decode."""

    def __init__(self, session: Session) -> None:
        """Check that the methods exist.

        Raises:
            UnknownName: no method has the role "prefill", or none the role "decode".
        """
        find_roles(session, "prefill")
        self.method = find_roles(session, "decode")[0].name
        self.most = _most(session)
        self._session = session

    def logits(self, tokens: Sequence[int], first: int) -> Iterator[Logits]:
        """Yield one row of logits for each scored token, as `Scorer.logits` says."""
        self._session.reset()
        feeder = Feeder(self._session)
        feeder.check_prompts([tokens[:-1]])
        yield feeder.feed_prompts([tokens[:first]])
        for token in tokens[first:-1]:
            yield feeder.feed([token])


class ByChunks:
    """Runs the context by prefill, then the scored tokens in chunks.

    A method that returns the logits of every token runs the chunks.
    """

    def __init__(self, session: Session, method: Method) -> None:
        """Use a method that appends tokens to the session, and returns all logits."""
        self.method = method.name
        self.most = _most(session)
        self._session = session
        self._sizes = chunk_sizes(method, session.symbols, session.longest_call)
        self._decode = chunk_sizes(find_roles(session, "decode")[0], session.symbols)

    def logits(self, tokens: Sequence[int], first: int) -> Iterator[Logits]:
        """Yield logits chunk by chunk, a row for each token; see `Scorer.logits`."""
        self._session.reset()
        feeder = Feeder(self._session)
        feeder.check_prompts([tokens[:-1]])
        yield feeder.feed_prompts([tokens[:first]])
        rest = np.array([tokens[first:-1]], np.int64)
        if not rest.size:
            return
        at = 0
        for chunk in plan_chunks(rest.size, [self._sizes], self._decode):
            part = rest[:, at : at + chunk.count]
            made = cast(Logits, self._session.call(chunk.method, part))
            yield made.reshape(chunk.count, -1)
            at += chunk.count


class WholeText:
    """Runs a whole window in one call of a method without state."""

    def __init__(self, session: Session, method: Method) -> None:
        """Use a method without state.

        Raises:
            UnusableLogits: the method's logits depend on later tokens.
        """
        self.method = method.name
        self._session = session
        self._sizes: ChunkSizes = chunk_sizes(method, session.symbols)
        self.most: int | None = self._sizes.most + 1
        # A change of the last token must change only the last row of logits;
        # a method of a single token is causal in any case.
        if self._sizes.most < 2:
            return
        tokens = np.zeros((1, self._sizes.smallest(2)), np.int64)
        before = cast(Logits, self._session.call(self.method, tokens))
        tokens[0, -1] = 1
        after = cast(Logits, self._session.call(self.method, tokens))
        if not np.allclose(before[:, :-1], after[:, :-1], rtol=1e-3, atol=1e-3):
            reason = f"the logits of {self.method} depend on later tokens"
            raise UnusableLogits(reason=reason)

    def logits(self, tokens: Sequence[int], first: int) -> Iterator[Logits]:
        """Yield the rows of logits of all scored tokens; see `Scorer.logits`.

        A window shorter than the method's least length is padded at the end, which does
        not affect a causal model.
        """
        count = len(tokens) - 1
        fill = self._sizes.smallest(count) - count
        given = np.array([[*tokens[:-1], *[tokens[0]] * fill]], np.int64)
        made = cast(Logits, self._session.call(self.method, given))
        yield made[0, first - 1 : count]


def _most(session: Session) -> int | None:
    """Return the length of the longest window, None if there is no limit.

    A window may have one token more than the session can hold, since the last token
    never runs.
    """
    return None if session.capacity is None else session.capacity + 1
