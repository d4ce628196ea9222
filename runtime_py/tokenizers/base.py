"""The interface of tokenizers, and of objects that have one (programs, sessions)."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class TextStream(Protocol):
    """Turns tokens into text as they come; all pieces together are the text."""

    def push(self, token: int) -> str:
        """Return the text that is certain now: complete characters, or nothing."""
        ...

    def finish(self) -> str:
        """Return what was held back; the stream is then at its end."""
        ...


class Tokenizer(Protocol):
    """Turns text into tokens, and tokens into text."""

    def encode(self, text: str, special: bool = True) -> Sequence[int]:
        """Return the tokens of a text.

        Args:
            text: what to encode.
            special: whether to add what the tokenizer puts around a text, such as a
                token for its beginning. Special tokens that are spelled out in the
                text become tokens in any case.
        """
        ...

    def stream(self, after: Sequence[int] = ()) -> TextStream:
        """Return a stream at its start.

        Args:
            after: tokens before the text, such as a prompt. They are not
                in the text, but may decide whether it begins with a space.
        """
        ...


class TextSource(Protocol):
    """A program or a session: what says which tokenizer there is, and carries it."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return settings, name to JSON text."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return files that go along, name to content."""
        ...
