"""`Decoding`: gets each next token from one call of the model.

In: the prompts, then the tokens that were returned. Out: the next token of each row,
sampled from the model's logits. `drafting.py` does the same with a draft model.
"""

from collections.abc import Sequence

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.row import Row


class Decoding:
    """Source of the tokens of one generation; a token runs when the next is requested.

    Attributes:
        rows: how much of prompt and answer each row of the session holds. Until
            `settle`, the session may hold more.
        prefill: the pace of the prompts.
        drafted: how many tokens of a draft the model has checked.
        accepted: how many of them the model sampled as well.
    """

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self.rows: Sequence[Row] = feeder.rows
        self.prefill = feeder.prefill
        self.drafted = self.accepted = 0

    def begin(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Run the prompts; return the token after each.

        Raises:
            StateMismatch: other code has used a session in the meantime.
            UnusableLogits: the logits allow no token.
            ExecutionError: as `Session.call`.
        """
        logits = self._feeder.feed_prompts([answer.prompt for answer in answers])
        return list(map(Answer.choose, answers, logits))

    def follow(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Return the token after the last of each answer, None if it has ended.

        Raises:
            KvcError: as `begin`.
        """
        logits = self._feeder.feed([answer.last for answer in answers])
        return list(map(Answer.choose, answers, logits))

    def settle(self) -> None:
        """Bring the session to exactly the tokens that `rows` count."""

    def end(self) -> None:
        """Settle at the end of the generation."""

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Store in the session the tokens of each row that it does not hold."""
        self._feeder.leave_pending(tokens)
