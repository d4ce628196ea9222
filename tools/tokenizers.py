"""From text to tokens and back, by what a bundle's metadata says about itself.

`"tokenizer": "bytes"`: a token is a byte. Without a tokenizer, text is token ids.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from kvc.schema.errors import BadSetting
from kvc.tools.settings import setting


class Tokenizer(Protocol):
    """Maps a prompt to tokens, and each token to what is streamed out."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a prompt."""

    def decode(self, token: int) -> bytes:
        """Return what a token adds to the output."""


class Bytes:
    """A token is a byte; text is UTF-8, or whatever bytes the shell passed."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the bytes of a prompt."""
        return os.fsencode(text)

    def decode(self, token: int) -> bytes:
        """Return the byte, nothing for a token that is none."""
        return bytes([token]) if token < 256 else b""


class Ids:
    """Text is token ids with spaces or commas between them."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids.

        Raises:
            BadSetting: something in the text is not a whole number.
        """
        try:
            return [int(part) for part in text.replace(",", " ").split()]
        except ValueError as error:
            expected = "token ids such as '1 15 8', since the bundle has no tokenizer"
            raise BadSetting(
                name="PROMPT", expected=expected, found=repr(text)
            ) from error

    def decode(self, token: int) -> bytes:
        """Return the id and a space."""
        return b"%d " % token


def tokenizer_of(metadata: Mapping[str, str]) -> Tokenizer:
    """Return the tokenizer that a bundle asks for.

    Raises:
        BadSetting: kvc has no tokenizer of this kind.
    """
    kind = setting(metadata, "tokenizer")
    if kind is None:
        return Ids()
    if kind == "bytes":
        return Bytes()
    name = "the bundle's metadata tokenizer"
    raise BadSetting(name=name, expected='"bytes", or none', found=repr(kind))
