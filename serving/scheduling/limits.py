"""`Limits`: how many requests a scheduler accepts, and how much memory they take."""

from typing import Final

from kvc.runtime.memory.system import system_nbytes
from kvc.schema.frozen import frozen

_MOST: Final = 1 << 30  # bytes of remembered texts, unless the limits say otherwise


@frozen
class Limits:
    """The limits of a scheduler.

    Attributes:
        rows: the greatest number of answers at once; None: as many as the bundle and
            `nbytes` allow, at most 16.
        nbytes: the greatest size of the caches of running and remembered texts, in
            bytes; None for no limit.
        remembered_nbytes: the greatest size of the caches of texts that have ended,
            which later prompts may begin with; part of `nbytes`. None: an eighth of the
            memory that the process may use, at most 1 GiB.
        queue: the greatest number of requests that wait. An eighth of these places is
            for clients that have a name and no request that waits.
        stall: the seconds for which reading a prompt may hold up the next tokens of
            others.
        interval: the seconds between two updates of an answer, at least; tokens that
            come sooner wait for the next update. The first token and the end do not.
        capacity: the greatest number of tokens of prompt and answer; None: what the
            bundle allows.
    """

    rows: int | None = None
    nbytes: int | None = None
    remembered_nbytes: int | None = None
    queue: int = 256
    stall: float = 0.2
    interval: float = 0.0
    capacity: int | None = None

    @property
    def most_remembered(self) -> int:
        """Return the greatest size of the caches of texts that have ended."""
        if self.remembered_nbytes is not None:
            return self.remembered_nbytes
        return min(_MOST, system_nbytes() // 8)
