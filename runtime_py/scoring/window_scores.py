"""`WindowScorer`: score windows one by one, in any order and any process.

In: a program, perhaps a reference program, and windows. Out: a `WindowScore` for each
window, which does not depend on the windows before it. `score.py` adds them up.
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Final

import numpy as np

from kvc.runtime.generation.log_probabilities import log_probabilities
from kvc.runtime.scoring.divergence import Beside, Compared, Exact
from kvc.runtime.scoring.scorers import Logits, Scorer, WindowTokens, find_scorer
from kvc.runtime.sessions.program import Program
from kvc.schema.closing import Closing
from kvc.schema.errors import BadSetting, UnusableLogits
from kvc.schema.frozen import frozen

_USUAL_WINDOW: Final = 1024


@frozen
class WindowScore:
    """The bits that a model needs for the scored tokens of a window.

    Attributes:
        bits: the bits of the tokens of each call. They are not added up here, so that
            the sum over all windows is rounded the same, wherever windows are scored.
        tokens: the number of scored tokens.
        seconds: the time of running and scoring, without that of the reference.
        compared: the comparison with the reference, None without one.
    """

    bits: tuple[float, ...]
    tokens: int
    seconds: float
    compared: Compared | None


class WindowScorer(Closing):
    """Scores windows by sessions of a program and of a reference.

    Attributes:
        method: the method that computes the logits.
    """

    def __init__(self, program: Program, against: Program | None = None) -> None:
        """Open sessions; the programs stay the caller's.

        Raises:
            UnknownName: a program has no methods that can score.
            UnusableLogits: logits depend on later tokens.
            KvcError: as `Session.call`.
        """
        self._opened = ExitStack()
        try:
            self._scorers = [
                find_scorer(one, self._opened.enter_context(one.session()))
                for one in (program, against)
                if one is not None
            ]
        except BaseException:
            self.close()
            raise
        self.method = self._scorers[0].method
        self._is_warm = False

    def close(self) -> None:
        """Close the sessions."""
        self._opened.close()

    def sizes(
        self, window: int | None, stride: int | None, start: int
    ) -> tuple[int, int]:
        """Return the length of a window and the stride, both in tokens.

        Args:
            window: the length that the user wants, None for the default.
            stride: the stride that the user wants, None for the default.
            start: the number of tokens at the beginning of each window.

        Raises:
            BadSetting: a window is longer than one of the models allows.
        """
        most = [one.most for one in self._scorers if one.most is not None]
        room = min(most) - start if most else None
        length = min(_USUAL_WINDOW, room or _USUAL_WINDOW) if window is None else window
        if room is not None and length > room:
            raise BadSetting(name="window", expected=f"up to {room}", found=length)
        return length, max(1, length // 2) if stride is None else stride

    def score(self, window: WindowTokens) -> WindowScore:
        """Return the score of a window.

        The first window runs its first calls twice, so that the time excludes loading.

        Raises:
            BadSetting: the models have different vocabulary sizes.
            InputMismatch: a token is not in the vocabulary.
            UnusableLogits: logits hold NaN or only infinities.
            KvcError: as `Session.call`.
        """
        if not self._is_warm:
            for one in self._scorers:
                _warm_up(one, window.tokens, window.first)
            self._is_warm = True
        began = time.perf_counter()
        beside = [Beside(one, window) for one in self._scorers[1:]]
        bits, at = list[float](), window.first
        for logits in self._scorers[0].logits(window.tokens, window.first):
            chosen = window.tokens[at : at + len(logits)]
            _check_tokens(logits, chosen)
            expected = log_probabilities(logits)
            bits.append(_bits(expected, chosen))
            at += len(logits)
            for other in beside:
                other.add(expected)
        seconds = time.perf_counter() - began - sum(other.seconds for other in beside)
        compared = beside[0].compared() if beside else None
        return WindowScore(tuple(bits), window.scored, seconds, compared)


def _warm_up(scorer: Scorer, tokens: Sequence[int], first: int) -> None:
    """Make the first call of each method: first calls load, verify and pack weights."""
    for _ in islice(scorer.logits(tokens, first), 2):
        pass


def _check_tokens(logits: Logits, tokens: Sequence[int]) -> None:
    """Check that logits float32 [n, vocab] have a column for each of `tokens`.

    Raises:
        UnusableLogits: a token is outside the vocabulary.
    """
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < logits.shape[1]:
            reason = f"they are for {logits.shape[1]} tokens, but the text has {token}"
            raise UnusableLogits(reason=reason)


def _bits(expected: Exact, tokens: Sequence[int]) -> float:
    """Return the total bits of tokens [n], given log probabilities [n, vocab]."""
    chosen = expected[np.arange(len(tokens)), np.array(tokens)]
    return float(-chosen.sum() / math.log(2))
