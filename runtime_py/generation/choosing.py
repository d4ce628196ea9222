"""`Chooser`: one row of a generation chooses its tokens, one after the other.

In: settings, the tokens that were there, logits float32 [vocab] at each step. Out: a
token at each step. What chance there is comes from one generator, seeded once.
"""

from collections.abc import Sequence
from copy import copy, deepcopy

import numpy as np

from kvc.runtime.generation.chances import Logits, choose_token, penalize
from kvc.runtime.generation.settings import GenerationSettings


class Chooser:
    """Chooses the tokens of one row by its settings and what was there before."""

    def __init__(self, settings: GenerationSettings, seen: Sequence[int]) -> None:
        self._settings = settings
        self._random = np.random.default_rng(settings.seed)
        self._seen = np.unique(np.array(seen, np.int64))

    def copy(self) -> "Chooser":
        """Return one that goes on as this one does, by the same chance."""
        other = copy(self)
        if self._settings.temperature:  # else nobody asks it
            other._random = deepcopy(self._random)
        return other

    def choose(self, logits: Logits) -> int:
        """Return the token that comes next.

        Raises:
            UnusableLogits: they hold NaN, or nothing to choose from.
        """
        penalty = self._settings.repetition_penalty
        if penalty == 1:
            return choose_token(logits, self._settings, self._random)
        # A model may take tokens that it never makes.
        end = np.searchsorted(self._seen, logits.size)
        weakened = penalize(logits, self._seen[:end], penalty)
        token = choose_token(weakened, self._settings, self._random)
        place = np.searchsorted(self._seen, token)
        if not np.array_equal(self._seen[place : place + 1], [token]):
            self._seen = np.insert(self._seen, place, token)
        return token
