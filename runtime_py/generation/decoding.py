"""`Decoding`: where the next tokens come from, a call of the model for each.

In: the prompts, then the tokens that were handed out. Out: the token that follows in
each row, chosen from the model's logits. `drafting.py` has the way with a second model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.feeding import Feeder, Row


@dataclass(slots=True)
class Drafted:
    """Tokens that a draft has guessed.

    Attributes:
        tokens: that were checked.
        accepted: that the target has chosen, too.
    """

    tokens: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """Return the share that was accepted, 0 when nothing was drafted."""
        return self.accepted / self.tokens if self.tokens else 0.0


class Decoding:
    """Gives the tokens of one generation; each is fed when the next is wanted.

    Attributes:
        rows: how much of prompt and answer each row of the session holds. It may hold
            more until `settle`.
        prefill: the pace of the prompts.
        drafted: what a draft has guessed so far.
    """

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self.rows: Sequence[Row] = feeder.rows
        self.prefill, self.drafted = feeder.prefill, Drafted()

    def begin(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Run the prompts; return the token after each.

        Raises:
            StateMismatch: something else has used a session.
            UnusableLogits: there is nothing to choose from.
            ExecutionError: as `Session.call`.
        """
        logits = self._feeder.feed_prompts([answer.prompt for answer in answers])
        return list(map(Answer.choose, answers, logits))

    def follow(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Return the token after the last of each answer, None where it has ended.

        Raises as `begin` does.
        """
        logits = self._feeder.feed([answer.last for answer in answers])
        return list(map(Answer.choose, answers, logits))

    def settle(self) -> None:
        """Leave the session with what `rows` say and no more."""

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Have the session say which tokens of each row it does not hold."""
        self._feeder.leave_pending(tokens)
