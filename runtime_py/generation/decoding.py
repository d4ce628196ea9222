"""`Decoding`: gets each next token from one call of the model.

In: the prompts, then the tokens that were returned. Out: the token that follows in each
row, chosen from the model's logits. `drafting.py` does the same with a draft model.
"""

from collections.abc import Sequence

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.row import Row


class Decoding:
    """Gives the tokens of one generation; each is run when the next one is asked for.

    Attributes:
        rows: how much of prompt and answer each row of the session holds. It may hold
            more until `settle`.
        prefill: the pace of the prompts.
        drafted: how many tokens a draft has guessed that the model has checked.
        accepted: how many of them were right.
    """

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self.rows: Sequence[Row] = feeder.rows
        self.prefill = feeder.prefill
        self.drafted = self.accepted = 0

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

    def end(self) -> None:
        """Settle for the last time: no more tokens are asked for."""

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Have the session say which tokens of each row it does not hold."""
        self._feeder.leave_pending(tokens)
