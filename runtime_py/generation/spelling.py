"""The text of an answer: tokens to pieces of text, cut before a stop string.

In: a tokenizer, tokens as they are made. Out: pieces of complete characters, of what no
stop string can begin in any more. However a text is cut into pieces, what is shown
together is the same: the text before the stop string that is complete first, and of
several that are complete at the same place before the longest.
"""

from collections.abc import Sequence

from kvc.runtime.tokenizers import Tokenizer


class Spelling:
    """The text of one answer.

    Attributes:
        stopped: whether a stop string has been found.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop_strings: Sequence[str]
    ) -> None:
        """Start after a prompt."""
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
        """Take over what is new in the tokens of the whole answer."""
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


class StopStrings:
    """Looks for stop strings.

    Attributes:
        found: whether one has been found; nothing is shown from then on.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""  # the longest end of the text that a stop string begins with
        self.found = False

    def push(self, piece: str) -> str:
        """Return what can be shown now."""
        if self.found:
            return ""
        text = self._held + piece
        start = self._find(text)
        if start is None:
            start = len(text) - self._count_held(text)
            self._held = text[start:]
        else:
            self.found, self._held = True, ""
        return text[:start]

    def finish(self) -> str:
        """Return what was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int | None:
        """Return where the stop string begins that ends first, None without one."""
        spans = []
        for string in self._strings:
            start = text.find(string)
            if start >= 0:
                spans.append((start + len(string), start))
        return min(spans)[1] if spans else None

    def _count_held(self, text: str) -> int:
        return max((_overlap(text, string) for string in self._strings), default=0)


def _overlap(text: str, string: str) -> int:
    """Return how long the end of a text is that a string begins with, not all of it."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
