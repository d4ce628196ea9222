"""`DraftedRow`: the tokens of one row whose next tokens are guessed.

In: an answer, the target's logits at guesses. Out: the tokens that the target samples
there, up to the first wrong guess. `drafting.py` runs the calls.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvc.runtime.generation.answer import Answer, Row
from kvc.runtime.generation.logits import Logits
from kvc.schema.errors import UnusableLogits


@dataclass(slots=True)
class DraftedRow:
    """The tokens of one row.

    Attributes:
        row: counts the tokens that were returned.
        lead: how many tokens of `sequence` the target's session held before the
            generation.
        sequence: the tokens that the guesser's session lacked, then prompt and answer.
        prompt_length: how many tokens the prompt has.
        ahead: sampled tokens that were not handed out yet.
    """

    row: Row
    lead: int
    sequence: list[int]
    prompt_length: int = 0
    ahead: deque[int] = field(default_factory=deque)

    @property
    def known(self) -> int:
        """Return how many tokens of prompt and answer the caller has received."""
        return max(self.prompt_length, self.row.fed + 1)


def choose_checked(
    answer: Answer, logits: Logits, guesses: Sequence[int], may_fail: bool
) -> list[int]:
    """Return the tokens that the target samples at the guesses.

    The list ends with the first token that differs from its guess. If all guesses are
    right, it ends with the token after the last guess.

    Args:
        answer: the answer whose chooser samples.
        logits: float32 [guesses + 1 or more, vocab].
        guesses: the tokens that the draft guessed.
        may_fail: whether there may be no token.

    Raises:
        UnusableLogits: the logits allow no token, and there must be one.
    """
    chosen: list[int] = []
    for row, guess in zip(logits, (*guesses, None), strict=False):
        try:
            token = answer.choose(row)
            assert token is not None, "no token has been handed out yet"
            chosen.append(token)
        except UnusableLogits:
            if not chosen and not may_fail:
                raise
            break  # raised again once these tokens have been handed out
        if chosen[-1] != guess:
            break
    return chosen
