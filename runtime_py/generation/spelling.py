"""The text of a generation: tokens to pieces of text, cut before a stop string.

In: a tokenizer, tokens as they are made. Out: pieces of complete characters.
"""

from collections.abc import Sequence

from kvc.runtime.generation.stop_strings import StopStrings
from kvc.runtime.tokenizers import Tokenizer


class Spelling:
    """The text of one generation.

    Attributes:
        stopped: whether a stop string has been found.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop_strings: Sequence[str]
    ) -> None:
        """Start behind a prompt."""
        self._stream = tokenizer.stream(after=prompt)
        self._stops = StopStrings(stop_strings)
        self._spelled = 0
        self._ready: list[str] = []
        self._finished = False

    @property
    def stopped(self) -> bool:
        """Tell whether a stop string has been found."""
        return self._stops.found

    def spell(self, tokens: Sequence[int]) -> None:
        """Take over what is new in the tokens of the whole generation."""
        for token in tokens[self._spelled :]:
            self._ready.append(self._stops.push(self._stream.push(token)))
        self._spelled = len(tokens)

    def take(self) -> str:
        """Return the text that can be shown and has not been taken yet."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def finish(self) -> str:
        """Return the rest, now that no more tokens come; nothing the second time."""
        if self._finished:
            return ""
        self._finished = True
        last = self._stops.push(self._stream.finish())
        return self.take() + last + self._stops.finish()
