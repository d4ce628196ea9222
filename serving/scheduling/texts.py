"""`Texts`: what has been computed of earlier texts, for prompts that begin alike.

In: the tokens that parked sessions hold. Out: those that share first tokens with a
prompt, which are compared one by one. Each use of a text has a number, so that the one
that was used longest ago can go first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

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
        nbytes: the bytes that their states take.
        used: a number that grows with each use of any text.
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
        goes_back: whether a session can always drop its last tokens.
        parked: the texts of the sessions.
        nbytes: the bytes that all of them take.
    """

    def __init__(self, nbytes_of: Callable[[int], int], goes_back: bool) -> None:
        """Begin without any.

        Args:
            nbytes_of: returns the bytes of a row of so many tokens.
            goes_back: whether a session can always drop its last tokens.
        """
        self._nbytes_of, self.goes_back = nbytes_of, goes_back
        self._uses = count(1)
        self.parked: list[Text] = []
        self.nbytes = 0

    def in_row(self, tokens: Tokens, adapter: Chosen) -> Text:
        """Return a text that a row holds, used now."""
        nbytes = self._nbytes_of(tokens.size)
        return Text(tokens, adapter, None, nbytes, next(self._uses))

    def park(self, tokens: Tokens, adapter: Chosen, session: Session) -> None:
        """Take over a session that holds tokens; others that it replaces are closed."""
        for text in list(self.parked):
            shared = common_tokens(text.tokens, tokens)
            covered = text.adapter == adapter and shared == text.tokens.size
            if covered and (self.goes_back or shared == tokens.size):
                self.close(text)  # the new text has all of it
        made = self.in_row(tokens, adapter)
        made.session = session
        self.parked.append(made)
        self.nbytes += made.nbytes

    def alike(self, prompt: Tokens, adapter: Chosen) -> Iterator[tuple[int, Text]]:
        """Yield each parked text of an adapter, after how much a prompt shares."""
        for text in self.parked:
            if text.adapter == adapter:
                yield common_tokens(text.tokens, prompt), text

    def use(self, text: Text) -> None:
        """Note that a text is used now."""
        text.used = next(self._uses)

    def close(self, text: Text) -> None:
        """Close the session of a parked text."""
        self.parked.remove(text)
        self.nbytes -= text.nbytes
        if text.session is not None:
            text.session.close()
