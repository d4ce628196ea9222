"""`JsonTokenizer`: a tokenizer.json, read by the package tokenizers.

In: the content of the file. Out: tokens of a text, and text of tokens. The package
encodes. For decoding, the package provides the text of each token and the parts of a
decoder; `text_streaming.py` turns token texts into text without decoding any token
twice.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

from kvc.runtime.tokenizers.text_streaming import (
    Decoder,
    NewStage,
    Stage,
    bytes_of,
    stages_of,
)
from kvc.schema.errors import BadTokenizer, MissingPackage
from kvc.schema.interrupts import is_failure

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

FILE: Final = "tokenizer.json"
INSTALL: Final = "pip install 'tokenizers>=0.23'"
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_LONG: Final = 1 << 13  # characters that take milliseconds
_MOST: Final = 2**32  # the limit of the library's token ids
# A non-empty subword prefix, or an escape that may hide its name.
_PREFIX: Final = re.compile(rb'"continuing_subword_prefix"\s*:\s*"|\\u00[2-7]')


class JsonTokenizer:
    """Encodes with the library tokenizers, and decodes piece by piece."""

    def __init__(self, raw: bytes) -> None:
        """Read a tokenizer.json.

        Raises:
            MissingPackage: the package tokenizers is not installed.
            BadTokenizer: the library cannot read the file.
        """
        self._library = _read(raw)
        with _library_errors("its decoder cannot be used: "):
            self._skipped = frozenset(_skipped(self._library))
            self._stages = _stages(self._library.decoder)
        self._lets_run = False

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the tokens of a text; lone surrogates become U+FFFD.

        Raises:
            BadTokenizer: the tokenizer cannot encode the text; for example, its
                template for special tokens adds a token that its vocabulary lacks.
        """
        clean = _SURROGATES.sub("\ufffd", text)
        with _library_errors("it cannot encode a text: "):
            if self._lets_run and len(clean) > _LONG:
                (encoding,) = self._library.encode_batch_fast(
                    [clean], add_special_tokens=special
                )
            else:
                encoding = self._library.encode(clean, add_special_tokens=special)
        return list(encoding.ids)

    def stream(self, after: Sequence[int] = ()) -> "JsonStream":
        """Return a new stream for text that follows the tokens `after`."""
        stream = JsonStream(self, [make() for make in self._stages])
        for token in after:
            stream.push(token)
        return stream

    @cached_property
    def added(self) -> Mapping[str, bool]:
        """Return the added tokens: text -> whether the token is special."""
        found = self._library.get_added_tokens_decoder().values()
        return {token.content: bool(token.special) for token in found}

    def token(self, text: str) -> int | None:
        """Return the token of a text in the vocabulary, None if there is none."""
        found: int | None = self._library.token_to_id(text)
        return found

    @property
    def without_added(self) -> "PlainTokenizer":
        """Return an encoder that knows no added token, special or not."""
        return PlainTokenizer(self._library)

    def showing(self, shows: Callable[[str], bool]) -> "JsonTokenizer":
        """Return a tokenizer whose text has those special tokens that `shows` names."""
        made = copy(self)
        made._skipped = frozenset(text for text in self._skipped if not shows(text))
        return made

    def letting_run(self) -> "JsonTokenizer":
        """Return a tokenizer that lets other threads run while it encodes a long text.

        The library (0.23) holds Python's lock for the second that a megabyte takes,
        except in its function for batches. That function may start threads of its own,
        of which a later fork warns, unless TOKENIZERS_PARALLELISM is "false".
        """
        made = copy(self)
        made._lets_run = True
        return made

    def spelling(self, token: int) -> str | None:
        """Return a token's text as the vocabulary has it, None for a skipped token.

        Decoding skips special tokens.
        """
        text = self._library.id_to_token(token) if 0 <= token < _MOST else None
        return None if text in self._skipped else text

    def raw(self, token: int) -> bytes | None:
        """Return the bytes that a token stands for, None if it stands for text."""
        text = self.spelling(token)
        return None if text is None else bytes_of(text, [s() for s in self._stages])


class PlainTokenizer:
    """Encodes as if the library had no added tokens."""

    def __init__(self, library: "Library") -> None:
        self._library = library

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the tokens of a text, without special tokens around it.

        Raises:
            BadTokenizer: the tokenizer cannot encode the text.
        """
        library, clean = self._library, _SURROGATES.sub("\ufffd", text)
        with _library_errors("it cannot encode a text: "):
            if library.normalizer is not None:
                clean = library.normalizer.normalize_str(clean)
            parts = [clean]
            if library.pre_tokenizer is not None:
                split = library.pre_tokenizer.pre_tokenize_str(clean)
                parts = [part for part, _ in split]
            return [t.id for part in parts for t in library.model.tokenize(part)]


class JsonStream:
    """The text of a stream of tokens, without special tokens.

    The whole text equals the text that the library decodes from all tokens together.
    """

    def __init__(self, tokenizer: JsonTokenizer, stages: Sequence[Stage]) -> None:
        self._tokenizer = tokenizer
        self._stages = stages

    def push(self, token: int) -> str:
        """Add a token; return new text that later tokens cannot change.

        Raises:
            BadTokenizer: the decoder cannot decode the token.
        """
        spelling = self._tokenizer.spelling(token)
        if spelling is None:
            return ""
        with _library_errors("it cannot decode tokens: "):
            return "".join(self._run([spelling], 0))

    def finish(self) -> str:
        """Return the rest of the text, which the decoding stages still hold.

        Raises:
            BadTokenizer: as `push`.
        """
        with _library_errors("it cannot decode tokens: "):
            return "".join(
                piece
                for i, stage in enumerate(self._stages, 1)
                for piece in self._run(stage.finish(), i)
            )

    def _run(self, pieces: Sequence[str], first: int) -> Sequence[str]:
        for stage in self._stages[first:]:
            pieces = [made for piece in pieces for made in stage.push(piece)]
        return pieces


def _skipped(library: "Library") -> Iterator[str]:
    """Yield the texts of the tokens that the library leaves out of decoded text.

    A token is left out if it is special, or was added as special earlier in the file.
    """
    for number, token in library.get_added_tokens_decoder().items():
        if token.special or _was_special(library, number):
            yield token.content


def _was_special(library: "Library", number: int) -> bool:
    shown = library.decode([number], skip_special_tokens=False)
    return bool(shown) and not library.decode([number])


def _read(raw: bytes) -> "Library":
    """Return the library's tokenizer, without its truncation and padding."""
    library = _library_class()
    if _PREFIX.search(raw) is not None:  # only then, since parsing takes long
        _check_merges(raw)
    with _library_errors():
        made = library.from_str(raw.decode())
        made.no_truncation()
        made.no_padding()
    return made


def _check_merges(raw: bytes) -> None:
    """Check that the second token of each merge begins with the subword prefix.

    The library (0.23) cuts off as many bytes as the prefix has, without a check. If the
    cut is within a character, the library aborts the process.

    Raises:
        BadTokenizer: a second token does not begin with the prefix.
    """
    try:
        model = json.loads(raw)["model"]
        prefix, merges = model["continuing_subword_prefix"] or "", model["merges"]
        ends = [
            pair.split(" ")[1] if isinstance(pair, str) else pair[1] for pair in merges
        ]
        wrong = next((end for end in ends if not end.startswith(prefix)), None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return  # no merges, or a file that the library refuses
    if wrong is not None:
        reason = f"the pair with {wrong!r} has no continuing_subword_prefix {prefix!r}"
        raise BadTokenizer(file=FILE, reason=reason)


@contextmanager
def _library_errors(what: str = "") -> Iterator[None]:
    """Turn errors of the library into errors of kvc.

    Raises:
        BadTokenizer: the library raised an error.
    """
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        raise BadTokenizer(
            file=FILE, reason=what + (str(error) or type(error).__name__)
        ) from error


def _stages(decoder: Decoder | None) -> tuple[NewStage, ...]:
    """Return functions that make the stages of a decoder, for each new stream.

    The decoder is read from the JSON text that the library pickles it as. Parsing the
    tokenizer.json again would take 70 ms for 49,152 tokens.
    """
    raw = b"null" if decoder is None else cast(bytes, decoder.__getstate__())
    return stages_of(json.loads(raw), _part)


def _part(decoder: object) -> Decoder:
    """Return a decoder of the library for one part of a tokenizer.json's decoder.

    The library only makes decoders as parts of tokenizers. So an empty tokenizer is
    read that has the part as its decoder.
    """
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    text = json.dumps({"version": "1.0", "model": model, "decoder": decoder})
    made: Decoder = _library_class().from_str(text).decoder
    return made


def _library_class() -> "type[Library]":
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        what, package = "the bundle's tokenizer.json", "tokenizers"
        raise MissingPackage(
            what=what, package=package, reason=str(error), install=INSTALL
        ) from error
    return Library
