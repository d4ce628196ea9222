"""Compare the next-token distributions of a model with those of a reference model.

In: the log probabilities of the model, row by row, and a scorer of the reference model.
Out: the mean Kullback-Leibler divergence per token, the standard error of the mean, and
how often both models predict the same token. The perplexity of some thousand tokens
varies by a percent at random. The divergence compares whole distributions, so it
distinguishes recipes with fewer tokens.
"""

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvc.runtime.generation.log_probabilities import log_probabilities
from kvc.runtime.scoring.scorers import Logits, Scorer, WindowTokens
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

Exact = NDArray[np.float64]


@frozen
class Divergence:
    """The distance of a model from its reference.

    Attributes:
        nats: the mean over tokens of sum(p * ln(p / q)), where p are the reference's
            probabilities of the next token and q the model's. 0 means equal
            distributions; infinity means that the model gives the probability 0 to a
            token that is possible for the reference.
        error: the standard error of `nats`, as if tokens were independent; infinity for
            a single token.
        same: the share of tokens for which model and reference have the same likeliest
            next token.
    """

    nats: float
    error: float
    same: float


@frozen
class Compared:
    """The comparison of the rows of a window.

    Attributes:
        nats: the divergence of each row, float64 [n].
        same: for how many rows both models have the same likeliest token.
    """

    nats: Exact
    same: int


def divergence_of(compared: Sequence[Compared]) -> Divergence:
    """Return the divergence, averaged over the rows of windows."""
    nats = np.concatenate([each.nats for each in compared])
    mean = float(nats.mean())
    known = mean < math.inf and len(nats) > 1
    error = float(nats.std(ddof=1)) / math.sqrt(len(nats)) if known else math.inf
    return Divergence(mean, error, sum(each.same for each in compared) / len(nats))


class Beside:
    """The reference model, which runs on the same window as the scored model.

    Attributes:
        seconds: the time of the reference's runs and of the comparison.
    """

    def __init__(self, scorer: Scorer, window: WindowTokens) -> None:
        self.seconds = 0.0
        self._rows = scorer.logits(window.tokens, window.first)
        self._left: Logits = np.empty((0, 0), np.float32)
        self._found: list[Exact] = []
        self._same = 0

    def add(self, expected: Exact) -> None:
        """Compare the scored model's next rows with the same rows of the reference.

        Args:
            expected: the log probabilities of the scored model, float64 [n, vocab].

        Raises:
            BadSetting: the reference has a different vocabulary size.
            UnusableLogits: logits hold NaN or only infinities.
            KvcError: as `Session.call`.
        """
        began = time.perf_counter()
        done = 0
        while done < len(expected):
            if not len(self._left):
                self._left = next(self._rows)
            count = min(len(self._left), len(expected) - done)
            self._compare(self._left[:count], expected[done : done + count])
            self._left, done = self._left[count:], done + count
        self.seconds += time.perf_counter() - began

    def compared(self) -> Compared:
        """Return the comparison of all rows."""
        return Compared(np.concatenate(self._found), self._same)

    def _compare(self, logits: Logits, expected: Exact) -> None:
        """Compare rows of the reference with the same rows of the scored model.

        Args:
            logits: the logits of the reference, float32 [n, vocab].
            expected: the log probabilities of the scored model, float64 [n, vocab].

        Raises:
            BadSetting: the two models have different vocabulary sizes.
        """
        if logits.shape != expected.shape:
            wanted = f"a model of {expected.shape[1]} tokens"
            found = f"one of {logits.shape[1]}"
            raise BadSetting(name="against", expected=wanted, found=found)
        reference = log_probabilities(logits)
        likely = np.exp(reference)
        # A token with probability 0 in the reference adds nothing to the divergence.
        ratio = np.subtract(
            reference, expected, out=np.zeros_like(likely), where=likely > 0
        )
        self._found.append((likely * ratio).sum(-1))
        self._same += int((reference.argmax(-1) == expected.argmax(-1)).sum())
