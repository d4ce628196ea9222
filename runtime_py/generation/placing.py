"""`Placing`: which tokens have to stand at a place of an answer, and which must not.

In: settings, how many tokens lie before the answer, how many it may have. Out: for each
place, a token that is taken without asking the model, and tokens that are left out of
its logits. Places are counted as in transformers 5 (generation/logits_process.py):
beginnings are those of the text, ends are where no more tokens are allowed.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.generation.settings import GenerationSettings

Logits = npt.NDArray[np.float32]
Rules = Callable[[Logits, Sequence[int]], Logits]


class Placing:
    """The tokens of the places of one answer.

    Attributes:
        says_nothing: whether every token may stand everywhere.
    """

    def __init__(
        self,
        settings: GenerationSettings,
        held: int = 0,
        most: int | None = None,
        rules: Rules | None = None,
    ) -> None:
        """Begin after `held` tokens, with an answer of `most` tokens, None: of any."""
        self._rules = rules
        is_start = held == 1
        self._first = settings.forced_bos_token_id if is_start else None
        self._last = min(settings.forced_eos_token_id, default=None)
        self._most = most
        self._never = np.array(settings.suppress_tokens, np.int64)
        self._not_first = np.array(settings.begin_suppress_tokens, np.int64)
        self._begins = 0 if self._first is None else 1
        told = (self._first, self._last)
        lists = (self._never, self._not_first)
        self.says_nothing = told == (None, None) and not any(a.size for a in lists)
        self.says_nothing = self.says_nothing and rules is None

    def forced(self, place: int) -> int | None:
        """Return the token that has to stand at a place, counted from 0; None: any."""
        if (
            self._most is not None
            and place == self._most - 1
            and self._last is not None
        ):
            return self._last
        return self._first if place == 0 else None

    def allowed(self, logits: Logits, made: Sequence[int]) -> Logits:
        """Return logits float32 [vocab], -inf for tokens that must not come next.

        `made`: the answer so far.
        """
        left = self._without_suppressed(logits, len(made))
        return left if self._rules is None else self._rules(left, made)

    def _without_suppressed(self, logits: Logits, place: int) -> Logits:
        hidden: Sequence[npt.NDArray[np.int64]] = [self._never]
        if place == self._begins:
            hidden = [self._never, self._not_first]
        if not any(tokens.size for tokens in hidden):
            return logits
        left = logits.copy()
        for tokens in hidden:
            left[tokens[tokens < left.size]] = -np.inf
        return left
