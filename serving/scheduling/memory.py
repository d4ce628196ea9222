"""`RowMemory`: how many bytes the caches of one row take, known before it runs.

In: an empty session of one row. Out: bytes for a number of tokens, in whole pages; and
the greatest number of tokens for some bytes. Several threads may ask.
"""

import threading

from kvc.runtime import Session
from kvc.schema.closing import Closing


class RowMemory(Closing):
    """The bytes that the states of one row take."""

    def __init__(self, session: Session) -> None:
        """Take over an empty session of one row, which is never used."""
        self._session = session
        self._known: dict[int, int] = {}
        self._lock = threading.Lock()

    def nbytes(self, tokens: int) -> int:
        """Return the bytes of a row of so many tokens."""
        with self._lock:
            found = self._known.get(tokens)
            if found is None:
                found = self._known[tokens] = self._session.foretold_nbytes(tokens)
            return found

    def most_tokens(self, nbytes: int, limit: int) -> int:
        """Return how many tokens fit into some bytes, at most `limit`; 0 if none do."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.nbytes(middle) <= nbytes:
                low = middle
            else:
                high = middle - 1
        return low

    def close(self) -> None:
        """Close the session."""
        self._session.close()
