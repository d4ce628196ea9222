"""`Pace`: how many tokens of a prompt may be read before others must go on.

In: the tokens and seconds of calls that have read prompts. Out: a number of tokens that
is expected to take at most some seconds.
"""

from typing import Final

_LEAST: Final = 16  # tokens of a part of a prompt
_MOST: Final = 512  # tokens of a part while nobody waits, so that it can be cancelled
_FIRST: Final = 64  # tokens before any speed is known
_WEIGHT: Final = 0.3  # of a new measurement


class Pace:
    """The speed of reading prompts."""

    def __init__(self) -> None:
        """Begin without a known speed."""
        self._per_token = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """Note how long a call took; calls that also bind a method are slower."""
        found = seconds / tokens
        if tokens < _LEAST:
            return
        if not self._per_token:
            self._per_token = found
        else:
            self._per_token += _WEIGHT * (found - self._per_token)

    def most(self, seconds: float | None) -> int:
        """Return how many tokens to read in about some seconds; None for no limit.

        The result is 0 if even a small part would take much longer.
        """
        if seconds is None:
            return _MOST
        if seconds <= 0:
            return 0
        if not self._per_token:
            return _FIRST
        count = int(seconds / self._per_token)
        return min(count // _LEAST * _LEAST, _MOST)
