"""Tokenizers that need no file: bytes, and token ids written as numbers."""

import codecs
import os
import reprlib
from collections.abc import Sequence

from kvc.schema.errors import BadSetting


class Bytes:
    """A token is a byte; text is UTF-8, or whatever bytes the shell passed."""

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
    """Joins bytes into characters; those that are none become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the characters that a byte completes; no byte, no characters."""
        return self._decoder.decode(bytes([token])) if 0 <= token < 256 else ""

    def finish(self) -> str:
        """Return U+FFFD for a character that was not completed."""
        return self._decoder.decode(b"", final=True)


class Ids:
    """Text is token ids with spaces or commas between them."""

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the ids; there are no special tokens.

        Raises:
            BadSetting: something in the text is not a whole number.
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
    """Writes each id, and a space."""

    def push(self, token: int) -> str:
        """Return the id and a space."""
        return f"{token} "

    def finish(self) -> str:
        """Return nothing: nothing is held back."""
        return ""
