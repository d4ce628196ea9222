"""`TokenTexts`: the text and the bytes of single tokens, for log probabilities."""

from collections.abc import Sequence
from typing import Final

from kvc.runtime.tokenizers import Bytes, TextStream, Tokenizer
from kvc.runtime.tokenizers.library import JsonTokenizer

_BEFORE: Final = 16  # tokens of a prompt that may change the text of what follows
LONGEST: Final = 256  # characters of a token; real ones have at most 128, of spaces


class TokenTexts:
    """Tells the text of single tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Show the names of special tokens, too."""
        self._of_answers = tokenizer
        if isinstance(tokenizer, JsonTokenizer):
            tokenizer = tokenizer.showing(lambda _: True)
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Return the text of a token; a part of a character becomes U+FFFD."""
        found = self._known.get(token)
        if found is None:
            stream = self._tokenizer.stream()
            found = stream.push(token) + stream.finish()
            self._known[token] = found
        return found

    def raw(self, token: int) -> bytes | None:
        """Return the bytes of a token, of a part of a character, too.

        None if they are unknown.
        """
        text, tokenizer = self.text(token), self._tokenizer
        if "\ufffd" not in text:
            return text.encode()
        if isinstance(tokenizer, Bytes):
            return bytes([token])
        return tokenizer.raw(token) if isinstance(tokenizer, JsonTokenizer) else None

    def name(self, token: int) -> str:
        """Return a text that no other token has: bytes of a part of a character."""
        text = self.text(token)
        raw = self.raw(token) if "\ufffd" in text else None
        if raw is None:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def stream(self, prompt: Sequence[int]) -> TextStream:
        """Return a stream for the text of an answer, without special tokens."""
        return self._of_answers.stream(after=prompt[-_BEFORE:])
