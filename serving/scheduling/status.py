"""`Status`: what a scheduler is doing, for health checks, metrics and pages."""

from kvc.schema.frozen import frozen


@frozen
class Status:
    """What a scheduler is doing now, and what it has done.

    Attributes:
        rows: the greatest number of answers at once.
        running: how many requests are being read or answered.
        waiting: how many requests wait.
        nbytes: the size of the caches of running and remembered texts, in bytes.
        remembered_nbytes: the part of `nbytes` that is of texts that have ended.
        prompt_tokens: how many tokens of prompts have been read.
        reused_tokens: how many tokens of prompts did not have to be read.
        tokens: how many tokens of answers have been made.
        steps: how many calls have made tokens.
        finished: how many requests have ended by themselves.
        cancelled: how many requests were cancelled.
        failed: how many requests have failed.
        refused: how many requests were refused since too many waited.
    """

    rows: int = 0
    running: int = 0
    waiting: int = 0
    nbytes: int = 0
    remembered_nbytes: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
