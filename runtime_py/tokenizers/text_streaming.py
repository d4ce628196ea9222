"""Decode token by token: each part of a tokenizer.json's decoder becomes a stage.

In: the texts of single tokens, in order. Out: pieces of text that later tokens cannot
change. The parts are those of the package tokenizers (`tokenizers/src/decoders`), which
work on a list of all tokens. If the result of a part depends only on a token, and on
whether the token is the first, its stage applies the part to each token separately. A
stage that joins tokens makes one text of all tokens, and later stages get that text in
pieces. For a part that cannot work in pieces, the stage returns all of the text at the
end: the text is right, but late.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")


class Decoder(Protocol):
    """A decoder of the library."""

    def decode(self, tokens: list[str]) -> str:
        """Return the text of tokens."""
        ...


class Stage(Protocol):
    """A step on the way from token texts to the final text; belongs to one stream."""

    def push(self, token: str) -> Sequence[str]:
        """Add a token; return the pieces that later tokens cannot change."""
        ...

    def finish(self) -> Sequence[str]:
        """Return the pieces that `push` has not returned yet."""
        ...


NewStage = Callable[[], Stage]


def stages_of(
    decoder: object, part: Callable[[object], Decoder]
) -> tuple[NewStage, ...]:
    """Return functions that make the stages of a stream, in the order of decoding.

    Args:
        decoder: the decoder of a tokenizer.json as parsed JSON; None if the file has no
            decoder.
        part: a function that makes a decoder of the library from one part of `decoder`.
    """
    if not isinstance(decoder, Mapping):
        return (Spaced,)
    made: list[NewStage] = []
    joined = False
    for one in _flat(decoder):
        stage, joined = _stage(one, joined, part)
        made.append(stage)
    return tuple(made)


def _flat(decoder: Mapping[str, object]) -> list[Mapping[str, object]]:
    parts = decoder.get("decoders")
    if decoder.get("type") != "Sequence" or not isinstance(parts, list):
        return [decoder]
    return [one for inner in parts for one in _flat(inner)]


def _stage(
    decoder: Mapping[str, object], joined: bool, part: Callable[[object], Decoder]
) -> tuple[NewStage, bool]:
    """Return a stage for one part of a decoder, and whether it makes a single text.

    Args:
        decoder: the part, as parsed JSON.
        joined: whether earlier stages have joined the tokens to a single text.
        part: a function that makes a decoder of the library from the part.

    Returns:
        A function that makes the stage; and whether the stage's output is pieces of a
        single text rather than tokens.
    """
    kind = str(decoder.get("type"))
    if joined:
        return _joined_stage(decoder, part), True
    match kind:
        case "ByteLevel":
            return ByteLevel, True
        case "Fuse":
            return Same, True
        case "ByteFallback":
            return ByteRuns, False
        case "BPEDecoder":
            suffix = str(decoder["suffix"])
            return (lambda: Suffixes(suffix)), False
        case "Replace" | "Strip":
            library = part(decoder)
            return (lambda: EachToken(library, by_place=False)), False
        case "Metaspace" | "WordPiece":
            library = part(decoder)
            return (lambda: EachToken(library, by_place=True)), False
    library = part(decoder)
    return (lambda: HeldBack(library, one=False)), True


def _joined_stage(
    decoder: Mapping[str, object], part: Callable[[object], Decoder]
) -> NewStage:
    match decoder:
        case {"type": "Fuse"}:
            return Same
        case {"type": "Strip", "content": str(mark), "start": int(a), "stop": int(b)}:
            return lambda: StripEnds(mark, a, b)
    library = part(decoder)
    return lambda: HeldBack(library, one=True)


class Same:
    """Returns each token unchanged."""

    def push(self, token: str) -> Sequence[str]:
        """Return the token."""
        return (token,)

    def finish(self) -> Sequence[str]:
        """Return no pieces."""
        return ()


class Spaced(Same):
    """Puts a space before each token but the first, for a file without a decoder."""

    def __init__(self) -> None:
        self._between = ""

    def push(self, token: str) -> Sequence[str]:
        """Return the token; if it is not the first token, with a space before it."""
        between, self._between = self._between, " "
        return (between + token,)


class EachToken(Same):
    """Decodes each token separately with the library."""

    def __init__(self, library: Decoder, by_place: bool) -> None:
        """Store whether the library decodes the first token of a text differently."""
        self._decode = library.decode
        self._by_place = by_place
        self._before: list[str] = []

    def push(self, token: str) -> Sequence[str]:
        """Return the text that the library decodes from one token.

        With `by_place`, the text of the first token may differ from that of an equal
        later token.
        """
        made = self._decode([*self._before, token])
        if self._by_place:
            self._before = [""]
        return (made,)


class ByteLevel:
    """Maps letters that stand for bytes to bytes, and joins bytes into characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: str) -> Sequence[str]:
        """Return the characters that the token completes."""
        known = all(letter in _BYTES for letter in token)
        raw = bytes(_BYTES[letter] for letter in token) if known else token.encode()
        return (self._decoder.decode(raw),)

    def finish(self) -> Sequence[str]:
        """Return U+FFFD if the last character is incomplete."""
        return (self._decoder.decode(b"", final=True),)


def _letters_of_bytes() -> dict[str, int]:
    """Return the byte of each letter, as in GPT-2's `bytes_to_unicode`.

    Printable letters of Latin 1 stand for themselves; letters from U+0100 on stand for
    the other bytes, in order.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    letters = {chr(byte): byte for byte in own}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES: Final = _letters_of_bytes()


class ByteRuns:
    """Joins a run of adjacent byte tokens such as <0xE2> to text.

    The text is returned when the run has ended. The library decodes a run as a whole:
    one wrong byte turns every byte of the run into U+FFFD.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, token: str) -> Sequence[str]:
        """Add a token; return no pieces while a run of byte tokens goes on.

        Any other token ends the run: return the text of the run, then the token.
        """
        if found := _BYTE.fullmatch(token):
            self._run.append(int(found[1], 16))
            return ()
        return (*self.finish(), token)

    def finish(self) -> Sequence[str]:
        """Return the text of a run of byte tokens that has not ended yet."""
        run, self._run = bytes(self._run), bytearray()
        try:
            return (run.decode(),) if run else ()
        except UnicodeDecodeError:
            return ("\ufffd",) * len(run)


def bytes_of(token: str, stages: Sequence[Stage]) -> bytes | None:
    """Return the bytes that a token stands for, None if it stands for text.

    Args:
        token: the text of the token in the vocabulary.
        stages: the stages of the decoder.
    """
    for stage in stages:
        if isinstance(stage, ByteLevel) and all(letter in _BYTES for letter in token):
            return bytes(_BYTES[letter] for letter in token)
        if isinstance(stage, ByteRuns) and (found := _BYTE.fullmatch(token)):
            return bytes([int(found[1], 16)])
    return None


class Suffixes:
    """Turns the marks that end words into spaces, except in the last token."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._last: str | None = None

    def push(self, token: str) -> Sequence[str]:
        """Add a token; return the previous token, with its mark turned into a space."""
        last, self._last = self._last, token
        return () if last is None else (last.replace(self._mark, " "),)

    def finish(self) -> Sequence[str]:
        """Return the last token without the mark of a word's end."""
        last, self._last = self._last, None
        return () if last is None else (last.replace(self._mark, ""),)


class StripEnds:
    """Removes a given character from both ends of a text that comes in pieces."""

    def __init__(self, mark: str, start: int, stop: int) -> None:
        self._mark, self._left, self._stop = mark, start, stop
        self._tail = ""  # the end of the text so far, which may have to be removed

    def push(self, token: str) -> Sequence[str]:
        """Return text, except for characters at the end that may have to be removed."""
        while self._left and token:
            if token[0] != self._mark:
                self._left = 0
            else:
                token, self._left = token[1:], self._left - 1
        text = self._tail + token
        ending = len(text) - len(text.rstrip(self._mark))
        end = len(text) - min(ending, self._stop)
        self._tail = text[end:]
        return (text[:end],)

    def finish(self) -> Sequence[str]:
        """Return no pieces: the characters that `push` held back are to be removed."""
        return ()


class HeldBack:
    """Collects all tokens, and decodes them together with the library at the end."""

    def __init__(self, library: Decoder, one: bool) -> None:
        """Store whether the tokens are pieces of one text, joined before decoding."""
        self._library, self._one = library, one
        self._tokens: list[str] = []

    def push(self, token: str) -> Sequence[str]:
        """Add a token; return no pieces."""
        self._tokens.append(token)
        return ()

    def finish(self) -> Sequence[str]:
        """Return the whole text."""
        tokens, self._tokens = self._tokens, []
        whole = ["".join(tokens)] if self._one else tokens
        return (self._library.decode(whole),) if tokens else ()
