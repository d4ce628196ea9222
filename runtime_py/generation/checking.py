"""`CheckingCalls`: the calls by which a target checks guesses.

In: tokens of each row, the numbers of tokens that the checking method takes. Out: the
logits after each token. A single row has exactly as many tokens as the method takes;
several rows are padded, which does not affect results.
"""

from collections.abc import Sequence

from kvc.runtime.calls.chunks import ChunkSizes
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.logits import Logits


class CheckingCalls:
    """The calls of one target.

    Attributes:
        method: the name of the checking method.
    """

    def __init__(self, target: Feeder, sizes: ChunkSizes) -> None:
        """Use a target, and the numbers of tokens that its method takes."""
        self.method = sizes.method
        self._target, self._sizes = target, sizes
        self._can_pad = len(target.rows) > 1

    def most_guesses(self, count: int) -> int:
        """Return how many guesses after a token one call can take, at most `count`."""
        if count < 1 or self._can_pad:
            return max(count, 0)
        fits = count + 1 >= self._sizes.least
        return self._sizes.greatest(count + 1) - 1 if fits else 0

    def run(self, parts: Sequence[Sequence[int]]) -> Logits:
        """Run tokens of each row in one call, of which the longest row has one or more.

        Returns:
            The logits after each token, float32 [rows, longest or more, vocab].

        Raises:
            StateMismatch, ExecutionError: as `Feeder.run`.
        """
        longest = max(map(len, parts))
        if longest == 1:
            return self._target.feed_parts(parts)[:, None]
        width = self._sizes.smallest(longest) if self._can_pad else 0
        flat = self._target.run(self.method, parts, width=width)
        return flat.reshape(len(parts), -1, flat.shape[-1])

    def run_again(self, missing: Sequence[Sequence[int]]) -> None:
        """Run tokens that a rewind has dropped, in one call if it takes them.

        If not, only the first token of each row runs.

        Raises:
            StateMismatch, ExecutionError: as `Feeder.run`.
        """
        guesses = max(map(len, missing)) - 1
        at_once = self.most_guesses(guesses) == guesses
        self.run(missing if at_once else [tokens[:1] for tokens in missing])
