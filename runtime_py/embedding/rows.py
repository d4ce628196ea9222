"""Run texts as rows of tokens, grouped into calls by their lengths.

In: texts, settings, a method. Out: the method's results in the order of the texts. One
call runs texts of similar lengths, so that rows need little padding.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.embedding.settings import TextSettings
from kvc.runtime.sessions.program import Program
from kvc.runtime.tokenizers import Tokenizer, tokenizer_of
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSetting, TextTooLong
from kvc.schema.frozen import frozen
from kvc.schema.model import Method
from kvc.schema.types import bounds
from kvc.schema.verify.limits import MAX_DIM

Floats = npt.NDArray[np.float32]

_TOKENS = 1 << 13  # the most tokens of a call, including padding


@frozen
class Taken:
    """The limits of a method's calls.

    Attributes:
        rows: the greatest number of rows of a call.
        least, most: the least and greatest number of tokens of a row.
        lengths: whether the method takes the number of tokens of each row as an input.
    """

    rows: int
    least: int
    most: int
    lengths: bool


Text = str | Sequence[int]  # a text, or its tokens


def run_texts(
    program: Program, settings: TextSettings, texts: object, prompt: str | None
) -> Floats:
    """Return a result of the program's method for each text, float32 [texts, n].

    Raises:
        BadSetting: there are no texts, a text has no tokens, or the program's method
            does not take texts.
        TextTooLong: a text has more tokens than the model takes; nothing has run.
        ExecutionError: as `Program.call`.
    """
    listed, tokenizer = _checked(texts), tokenizer_of(program)
    rows = encoded_texts(program, settings, tokenizer, listed, prompt)
    return run_rows(program, settings, rows)


def run_rows(
    program: Program, settings: TextSettings, rows: Sequence[Sequence[int]]
) -> Floats:
    """Return a result of the program's method for the tokens of each text.

    Args:
        program: the program.
        settings: its settings for texts.
        rows: the tokens of each text, as `encoded_texts` returns them.

    Raises:
        BadSetting, ExecutionError: as `run_texts`.
    """
    taken = _taken(program, program.methods[settings.method])
    made = list[Floats | None]([None] * len(rows))
    for chosen in _calls(rows, taken):
        found = _run(program, settings, taken, [rows[i] for i in chosen])
        for i, vector in zip(chosen, found, strict=True):
            made[i] = vector
    return np.stack([vector for vector in made if vector is not None])


def _checked(texts: object) -> Sequence[str]:
    """Return `texts` after checking that it is a list of texts.

    Raises:
        BadSetting: `texts` is not a list of texts, or is empty.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not len(texts):
        found = "one text" if isinstance(texts, str) else repr(texts)[:40]
        raise BadSetting(name="texts", expected="a list of texts", found=found)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            found = repr(text)[:40]
            raise BadSetting(name=f"texts[{i}]", expected="a text", found=found)
    return texts


def most_tokens(program: Program, settings: TextSettings) -> int:
    """Return how many tokens a text can have."""
    return _taken(program, program.methods[settings.method]).most


def encoded_texts(
    program: Program,
    settings: TextSettings,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    prompt: str | None,
) -> list[Sequence[int]]:
    """Return the tokens of texts; those that are given as tokens stay as they are.

    Args:
        program: the program.
        settings: its settings for texts.
        tokenizer: its tokenizer.
        texts: the texts.
        prompt: the name of the prefix of texts, None for the default.

    Raises:
        BadSetting: a text has no tokens, or there is no prefix of that name.
        TextTooLong: a text has more tokens than the model takes.
    """
    most = most_tokens(program, settings)

    def encoded(i: int, text: Text) -> Sequence[int]:
        tokens = text
        if isinstance(text, str):
            tokens = list(tokenizer.encode(settings.prepared(text, prompt)))
        assert not isinstance(tokens, str), "encoded above"
        if not tokens:
            expected = "a text that the tokenizer encodes to at least one token"
            found = repr(text[:40])
            raise BadSetting(name=f"texts[{i}]", expected=expected, found=found)
        if len(tokens) > most:
            raise TextTooLong(number=i, tokens=len(tokens), most=most)
        if not 0 <= min(tokens) <= max(tokens) < MAX_DIM:
            expected = f"tokens from 0 to {MAX_DIM - 1}"
            raise BadSetting(name=f"texts[{i}]", expected=expected, found=text[:40])
        return tokens

    return [encoded(i, text) for i, text in enumerate(texts)]


def _taken(program: Program, method: Method) -> Taken:
    """Return the limits of a method's calls.

    Raises:
        BadSetting: the method has inputs besides tokens and row lengths.
    """
    types = [method.graph.values[value].type for value in method.graph.inputs]
    ranks = [(kind.dtype, len(kind.dims)) for kind in types]
    tokens, lengths = (DType.INT64, 2), (DType.INT64, 1)
    if ranks not in ([tokens], [tokens, lengths]):
        expected = "a method of tokens [batch, seq] and lengths [batch]"
        raise BadSetting(name="the bundle", expected=expected, found=method.name)
    rows, seq = types[0].dims
    least, most = bounds(seq, program.symbols)
    if len(types) == 1 and least != most:
        expected = "a method that takes row lengths, as its rows may have padding"
        raise BadSetting(name="the bundle", expected=expected, found=method.name)
    return Taken(bounds(rows, program.symbols)[1], least, most, len(types) == 2)


def _calls(rows: Sequence[Sequence[int]], taken: Taken) -> Iterator[list[int]]:
    """Yield the indices of the rows of each call; the longest rows come first."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    while order:
        longest = max(taken.least, len(rows[order[0]]))
        count = max(1, min(taken.rows, _TOKENS // longest))
        yield order[:count]
        order = order[count:]


def _run(
    program: Program,
    settings: TextSettings,
    taken: Taken,
    rows: Sequence[Sequence[int]],
) -> Floats:
    """Run a method on rows padded on the right, and return its result."""
    longest = max(taken.least, *map(len, rows))
    tokens = np.full((len(rows), longest), settings.padding, np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int64)
    given = (tokens, lengths) if taken.lengths else (tokens,)
    return vectors_of(program.call(settings.method, *given), len(rows))


def vectors_of(made: object, rows: int) -> Floats:
    """Return the result of a method, after checking that it is float32 [rows, n].

    Raises:
        BadSetting: the result has a different shape.
    """
    if isinstance(made, np.ndarray) and made.ndim == 2 and len(made) == rows:
        return made
    found = f"one of another shape: {getattr(made, 'shape', type(made).__name__)}"
    expected = "a method that returns a vector for each text or picture"
    raise BadSetting(name="the bundle", expected=expected, found=found)
