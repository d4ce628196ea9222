"""The interface of tokenizers, and of objects that have one (programs, sessions)."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class TextStream(Protocol):
    """Turns tokens into text one by one; the text is all pieces together."""

    def push(self, token: int) -> str:
        """Add a token; return the text that is certain now, in complete characters."""
        ...

    def finish(self) -> str:
        """Return the text that was held back; the stream then ends."""
        ...


class Tokenizer(Protocol):
    """Turns text into tokens, and tokens into text."""

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the tokens of a text.

        Args:
            text: the text to encode.
            special: whether to add the special tokens around a text, such as a
                beginning-of-text token. Special tokens that are spelled out in the
                text become tokens in any case.
        """
        ...

    def stream(self, after: Sequence[int] = ()) -> TextStream:
        """Return a stream at its start.

        Args:
            after: the tokens before the text, such as a prompt. They are not part of
                the text, but may decide whether it begins with a space.
        """
        ...


class TextSource(Protocol):
    """A program or a session, whose metadata names its tokenizer."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return settings, name to JSON text."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the bundled files, name to content."""
        ...
