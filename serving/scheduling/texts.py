"""`Texts`: what has been computed of earlier texts, for prompts that begin alike.

In: the tokens that rows and parked sessions hold. Out: the one that shares the most
first tokens with a prompt. Tokens are compared one by one. Parked sessions are closed
when they take too many bytes, the one that was used longest ago first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvc.runtime import Session
from kvc.serving.scheduling.rows import Chosen

Tokens = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Text:
    """Tokens whose states are kept.

    Attributes:
        tokens: the tokens, int64 [n].
        adapter: the adapter that read them.
        session: the parked session that holds them; None if they are in a row.
        nbytes: the bytes that the session takes.
        used: a number that grows with each use.
    """

    tokens: Tokens
    adapter: Chosen
    session: Session | None = None
    nbytes: int = 0
    used: int = 0


def common_tokens(one: Tokens, other: Tokens) -> int:
    """Return how many first tokens two texts share."""
    least = min(one.size, other.size)
    differing = np.flatnonzero(one[:least] != other[:least])
    return int(differing[0]) if differing.size else least


class Texts:
    """The parked sessions of a scheduler.

    Attributes:
        nbytes: the bytes that all of them take.
    """

    def __init__(
        self, most_nbytes: int, nbytes_of: Callable[[int], int], goes_back: bool
    ) -> None:
        """Begin without any.

        Args:
            most_nbytes: the greatest number of bytes that they may take.
            nbytes_of: returns the bytes of a row of so many tokens.
            goes_back: whether a session can always drop its last tokens.
        """
        self._most, self._nbytes_of = most_nbytes, nbytes_of
        self._goes_back = goes_back
        self._parked: list[Text] = []
        self._uses = 0
        self.nbytes = 0

    def keeps(self, tokens: int) -> bool:
        """Tell whether a text of so many tokens can be parked at all."""
        return self._nbytes_of(tokens) <= self._most

    def park(self, tokens: Tokens, adapter: Chosen, session: Session) -> None:
        """Take over a session that holds tokens; others may be closed for it."""
        for text in list(self._parked):
            shared = common_tokens(text.tokens, tokens)
            covered = text.adapter == adapter and shared == text.tokens.size
            if covered and (self._goes_back or shared == tokens.size):
                self._close(text)  # the new text has all of it
        nbytes = self._nbytes_of(tokens.size)
        self.shrink(self._most - nbytes)
        self._uses += 1
        self._parked.append(Text(tokens, adapter, session, nbytes, self._uses))
        self.nbytes += nbytes

    def find(self, prompt: Tokens, adapter: Chosen) -> tuple[Text | None, int]:
        """Return the parked text that shares the most with a prompt, and how much."""
        best, most = None, 0
        for text in self._parked:
            if text.adapter == adapter:
                shared = common_tokens(text.tokens, prompt)
                if shared > most:
                    best, most = text, shared
        return best, most

    def use(self, text: Text) -> Session:
        """Return the session of a parked text, which has been used now."""
        self._uses += 1
        text.used = self._uses
        assert text.session is not None, "it is parked"
        return text.session

    def drop_adapter(self, names: Sequence[str]) -> None:
        """Close the texts that adapters have read, except those of some names."""
        for text in list(self._parked):
            if text.adapter[0] is not None and text.adapter[0] not in names:
                self._close(text)

    def shrink(self, nbytes: int) -> None:
        """Close texts until they take no more than some bytes."""
        for text in sorted(self._parked, key=lambda text: text.used):
            if self.nbytes <= max(nbytes, 0):
                return
            self._close(text)

    def _close(self, text: Text) -> None:
        self._parked.remove(text)
        self.nbytes -= text.nbytes
        if text.session is not None:
            text.session.close()
