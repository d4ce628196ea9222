"""`TokenTexts`: the text and the bytes of single tokens, for log probabilities."""

from typing import Final

from kvc.runtime.tokenizers import Bytes, Tokenizer
from kvc.runtime.tokenizers.library import JsonTokenizer

LONGEST: Final = 256  # characters of a token; real ones have at most 128, of spaces


class TokenTexts:
    """Tells the text of single tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Show the names of special tokens, too."""
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
