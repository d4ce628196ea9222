"""Tokenizers that need no file: bytes, and token ids written as numbers.

In: text or tokens. Out: tokens or text.
"""

import codecs
import os
import reprlib
from collections.abc import Sequence

from kvc.schema.errors import BadSetting


class Bytes:
    """A tokenizer whose tokens are the bytes of a text in UTF-8.

    Bytes that are not UTF-8, which a shell can pass, are tokens too.
    """

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the bytes of a text; there are no special tokens."""
        return os.fsencode(text)

    def stream(self, after: Sequence[int] = ()) -> "ByteStream":
        """Return a stream of characters."""
        stream = ByteStream()
        for token in after:
            stream.push(token)
        return stream


class ByteStream:
    """Joins bytes into characters; invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the character that a byte completes, "" for none."""
        return self._decoder.decode(bytes([token])) if 0 <= token < 256 else ""

    def finish(self) -> str:
        """Return U+FFFD if the last character is incomplete, else ""."""
        return self._decoder.decode(b"", final=True)


class Ids:
    """A tokenizer for texts that are token ids, separated by spaces or commas."""

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the ids; there are no special tokens.

        Raises:
            BadSetting: a part of the text is not an integer.
        """
        try:
            return [int(part) for part in text.replace(",", " ").split()]
        except ValueError as error:
            expected = "token ids such as '1 15 8', since the bundle has no tokenizer"
            raise BadSetting(
                name="text", expected=expected, found=reprlib.repr(text)
            ) from error

    def stream(self, after: Sequence[int] = ()) -> "IdStream":
        """Return a stream of numbers."""
        return IdStream()


class IdStream:
    """Writes each id, followed by a space."""

    def push(self, token: int) -> str:
        """Return the id and a space."""
        return f"{token} "

    def finish(self) -> str:
        """Return "": `push` has returned all text."""
        return ""
