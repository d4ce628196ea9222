"""`Limits`: how many requests a scheduler accepts, and how much memory they take."""

from kvc.schema.frozen import frozen


@frozen
class Limits:
    """The limits of a scheduler.

    Attributes:
        rows: the greatest number of answers at once; None: as many as the bundle and
            `nbytes` allow, at most 16.
        nbytes: the greatest size of the caches of running and remembered texts, in
            bytes; None for no limit.
        remembered_nbytes: the greatest size of the caches of texts that have ended,
            which later prompts may begin with; part of `nbytes`.
        queue: the greatest number of requests that wait.
        stall: the seconds for which reading a prompt may hold up the next tokens of
            others.
        interval: the seconds between two updates of an answer, at least; tokens that
            come sooner wait for the next update. The first token and the end do not.
        capacity: the greatest number of tokens of prompt and answer; None: what the
            bundle allows.
    """

    rows: int | None = None
    nbytes: int | None = None
    remembered_nbytes: int = 1 << 30
    queue: int = 256
    stall: float = 0.2
    interval: float = 0.0
    capacity: int | None = None
