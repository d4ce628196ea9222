"""Log probabilities of tokens, from the model's logits.

In: the logits of a step, as the model returned them: before processors, constraints,
temperature and any choice of candidates. Out: the natural logarithm of the probability
of a token, and the likeliest tokens with theirs.
"""

import math

import numpy as np
import numpy.typing as npt

from kvc.schema.errors import UnusableLogits
from kvc.schema.frozen import frozen


@frozen
class TokenLogprob:
    """The log probability of a token, and of the likeliest tokens at its place.

    Attributes:
        token: the token.
        logprob: the natural logarithm of its probability.
        top: the likeliest tokens and their log probabilities, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def log_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the natural logarithms of the probabilities, float64 [n, vocab].

    Args:
        logits: float32 [n, vocab].

    Raises:
        UnusableLogits: a row holds NaN, or only infinities.
    """
    exact = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        exact -= exact.max(-1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    if np.isnan(exact).any():
        raise UnusableLogits(reason="they hold NaN, or only infinities")
    return exact


def token_logprob(
    exact: npt.NDArray[np.float64], token: int, count: int
) -> TokenLogprob:
    """Return the log probability of a token, and those of the `count` likeliest.

    Args:
        exact: log probabilities, float64 [vocab].
        token: a token; one without a logit, which a setting may force, has the
            probability 0.
        count: how many of the likeliest tokens to name.
    """
    count = min(count, exact.size)
    best = np.argpartition(-exact, count - 1)[:count] if count else np.zeros(0, int)
    best = best[np.lexsort((best, -exact[best]))]
    top = tuple((int(one), float(exact[one])) for one in best)
    logprob = float(exact[token]) if token < exact.size else -math.inf
    return TokenLogprob(token, logprob, top)
