"""Stop strings in a text that comes in pieces.

In: pieces of text. Out: what of it can be shown: all that no stop string can begin in
any more. However a text is cut into pieces, what is shown together is the same: the
text before the stop string that is complete first, and of several that are complete
at the same place before the longest.
"""

from collections.abc import Sequence


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
