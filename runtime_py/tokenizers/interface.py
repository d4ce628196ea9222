"""The interface of tokenizers, and of objects with a tokenizer (programs, sessions)."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class TextStream(Protocol):
    """Turns tokens into text one by one; the pieces together are the whole text."""

    def push(self, token: int) -> str:
        """Add a token; return new text that later tokens cannot change."""
        ...

    def finish(self) -> str:
        """End the stream; return the text that `push` has not returned yet."""
        ...


class Tokenizer(Protocol):
    """Turns text into tokens, and tokens into text."""

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the tokens of a text.

        Args:
            text: the text to encode.
            special: whether to add the special tokens around a text, such as a
                beginning-of-text token. The names of special tokens within the text
                become tokens in any case.
        """
        ...

    def stream(self, after: Sequence[int] = ()) -> TextStream:
        """Return a new stream, which has no tokens yet.

        Args:
            after: the tokens before the text, such as a prompt. The stream does not
                return the text of these tokens, but they may decide whether the
                stream's text begins with a space.
        """
        ...


class TextSource(Protocol):
    """A program or a session, whose metadata names its tokenizer."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the settings: name -> JSON text."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the bundled files: name -> content."""
        ...
