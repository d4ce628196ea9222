"""`Decoding`: gets each next token from one call of the model.

In: the prompts, then the tokens returned so far. Out: the next token of each row,
sampled from the model's logits. `drafting.py` gets the same tokens faster, with a
second model.
"""

from collections.abc import Sequence

from kvc.runtime.generation.answer import Answer, Row
from kvc.runtime.generation.feeding import Feeder, Pace


class Decoding:
    """Source of one generation's tokens; a token runs when the next one is requested.

    Attributes:
        rows: the token count of prompt and answer in each row of the session. Before
            `settle`, the session may hold more tokens than the counts in `rows`.
        prefill: how many tokens the prompts have, and the time that the prompts took.
        decode: how many tokens of the answers have come, and the time that they took.
        logprobs: for each row the log probabilities of its prompt, if asked for.
        drafted: how many tokens of a draft the model has checked.
        accepted: how many of the checked tokens the model sampled as well.
        score: the score of the best of several beams; None before the search has ended,
            and without beams.
    """

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self.rows: Sequence[Row] = feeder.rows
        self.prefill, self.decode = feeder.prefill, Pace()
        self.logprobs = feeder.logprobs
        self.drafted = self.accepted = 0
        self.score: float | None = None

    def begin(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Run the prompts; return the first token after each prompt.

        Raises:
            StateMismatch: after the generation was made, other code has used one of its
                sessions.
            UnusableLogits: the logits allow no token.
            ExecutionError: as `Session.call`.
        """
        logits = self._feeder.feed_prompts([answer.prompt for answer in answers])
        return list(map(Answer.choose, answers, logits))

    def follow(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Return the next token of each answer; run the tokens that it depends on.

        A next token is None if the answer has ended. A token that is the only possible
        one is returned before the tokens ahead of it have run: they run together, when
        a choice depends on them.

        Raises:
            KvcError: as `begin`.
        """
        tokens = [answer.force() for answer in answers]
        parts: list[Sequence[int]] = []
        for token, answer in zip(tokens, answers, strict=True):
            waits = answer.reason is not None or token is not None
            parts.append(() if waits else answer.pending)
        if not any(parts):
            return tokens
        logits = self._feeder.feed_parts(parts)
        for number, part in enumerate(parts):
            if part:
                tokens[number] = answers[number].choose(logits[number])
        return tokens

    def settle(self) -> None:
        """Rewind the session to the token counts in `rows`."""

    def end(self) -> None:
        """Rewind the session to the token counts in `rows` at the generation's end."""

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Store in the session the tokens that are to run next in each row."""
        self._feeder.leave_pending(tokens)
