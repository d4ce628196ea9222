"""`Chooser`: samples the tokens of one row, one after the other.

In: settings, the tokens so far, logits float32 [vocab] at each step. Out: a token at
each step. The operations and their order are those of transformers 5
(generation/logits_process.py): repetition penalty, forced and suppressed tokens,
temperature, top-k, top-p, min-p. No step sorts the vocabulary. All randomness comes
from one generator, seeded once.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.generation.settings import GenerationSettings
from kvc.schema.errors import UnusableLogits

# Forced and suppressed tokens


Logits = npt.NDArray[np.float32]
Rules = Callable[[Logits, Sequence[int]], Logits]


class Placing:
    """The forced and suppressed tokens of one answer.

    Attributes:
        says_nothing: whether the answer has no forced tokens, no suppressed tokens and
            no rules.
    """

    def __init__(
        self,
        settings: GenerationSettings,
        held: int = 0,
        most: int | None = None,
        rules: Rules | None = None,
    ) -> None:
        """Begin an empty answer.

        Args:
            settings: the settings that name forced and suppressed tokens.
            held: the number of tokens before the answer.
            most: the greatest number of tokens of the answer, None for no limit.
            rules: masks the logits of tokens that must not follow; None for no mask.
        """
        self._rules = rules
        is_start = held == 1
        self._first = settings.forced_bos_token_id if is_start else None
        self._last = min(settings.forced_eos_token_id, default=None)
        self._most = most
        self._never = np.array(settings.suppress_tokens, np.int64)
        self._not_first = np.array(settings.begin_suppress_tokens, np.int64)
        self._begins = 0 if self._first is None else 1
        forced = (self._first, self._last)
        lists = (self._never, self._not_first)
        self.says_nothing = forced == (None, None) and not any(a.size for a in lists)
        self.says_nothing = self.says_nothing and rules is None

    def forced(self, place: int) -> int | None:
        """Return the token forced at an index of the answer, None if none is forced."""
        if (
            self._most is not None
            and place == self._most - 1
            and self._last is not None
        ):
            return self._last
        return self._first if place == 0 else None

    def allowed(self, logits: Logits, made: Sequence[int]) -> Logits:
        """Return logits float32 [vocab], -inf for tokens that must not come next.

        `made` has the tokens of the answer so far.
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


# Sampling


Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

_FEW: Final = 1024  # up to this number, tokens are sorted at once
_GROUP: Final = 64  # size of the groups whose maxima are searched first


class Chooser:
    """Samples the tokens of one row, given settings and the tokens before them."""

    def __init__(
        self,
        settings: GenerationSettings,
        seen: Sequence[int],
        row: int = 0,
        placing: Placing | None = None,
    ) -> None:
        """Begin after the tokens `seen`; the row's seed is `settings.seed` + `row`."""
        self._settings = settings
        self._placing = placing or Placing(settings)
        self._made: tuple[int, ...] = ()
        seed = None if settings.seed is None else settings.seed + row
        greedy = not settings.temperature  # numpy.random is slow to import
        self._random = None if greedy else np.random.default_rng(seed)
        penalized = settings.repetition_penalty != 1
        # Not `np.unique`, which imports numpy.ma.
        self._seen = np.array(sorted(set(seen)) if penalized else [], np.int64)

    def copy(self) -> "Chooser":
        """Return a copy of the chooser, which will draw the same random numbers."""
        other = copy(self)
        other._random = deepcopy(self._random)
        return other

    def choose(self, logits: Logits) -> int:
        """Return the next token.

        Raises:
            UnusableLogits: the logits hold NaN, or allow no token.
        """
        penalty = self._settings.repetition_penalty
        if penalty == 1 and self._placing.says_nothing:
            return choose_token(logits, self._settings, self._random)
        token = self._placing.forced(len(self._made))
        if token is None:
            # A model may read tokens that it never generates.
            end = np.searchsorted(self._seen, logits.size)
            weakened = penalize(logits, self._seen[:end], penalty)
            allowed = self._placing.allowed(weakened, self._made)
            token = choose_token(allowed, self._settings, self._random)
        self._made = (*self._made, token)
        if penalty != 1:
            place = np.searchsorted(self._seen, token)
            if not np.array_equal(self._seen[place : place + 1], [token]):
                self._seen = np.insert(self._seen, place, token)
        return token


def choose_token(
    logits: Logits,
    settings: GenerationSettings,
    random: "np.random.Generator | None" = None,
) -> int:
    """Return a token id, sampled if the temperature is above 0.

    Raises:
        UnusableLogits: the logits hold NaN, or allow no token.
    """
    if settings.temperature == 0:
        token = int(logits.argmax())  # the index of a NaN, if there is one
        _check_best(float(logits[token]))
        return token
    assert random is not None, "sampling has a generator"
    ids, scores = keep_tokens(logits, settings)
    # In place: allocating memory for each token would cost as much as the sums.
    totals = np.exp(scores, out=scores).cumsum(out=scores)
    # `random` returns at most 1 - 2**-53: after any rounding, this is below the total.
    place = random.random() * totals[-1]
    return int(ids[np.searchsorted(totals, place, side="right")])


def keep_tokens(logits: Logits, settings: GenerationSettings) -> tuple[Ids, Scores]:
    """Return the tokens that may be sampled, ascending, and their scores.

    Args:
        logits: float32 [vocab], after any repetition penalty.
        settings: with a temperature above 0.

    Returns:
        ids: int64 [kept].
        scores: float64 [kept], (logit - greatest logit) / temperature for each id.

    Raises:
        UnusableLogits: the logits hold NaN or infinity, or allow no token.
    """
    best = float(logits.max())
    _check_best(best, most=math.inf)
    ids = _keep_top_k(logits, settings.top_k)
    kept_logits = logits if ids.size == logits.size else logits[ids]
    scores: Scores = np.subtract(kept_logits, best, dtype=np.float64)
    with np.errstate(over="ignore"):
        scores /= settings.temperature
    if settings.top_p < 1:
        kept = _keep_top_p(scores, settings.top_p)
        ids, scores = ids[kept], scores[kept]
    if settings.min_p > 0:
        likely = scores >= math.log(settings.min_p)
        ids, scores = ids[likely], scores[likely]
    return ids, scores


def penalize(logits: Logits, seen: Ids, penalty: float) -> Logits:
    """Return logits in which tokens that occurred before are less likely.

    Args:
        logits: float32 [vocab].
        seen: the earlier tokens, each once.
        penalty: the strength. Above 1 makes the tokens less likely, below 1 makes them
            more likely.
    """
    found = logits[seen].astype(np.float64)
    weakened = logits.copy()
    with np.errstate(over="ignore"):
        weakened[seen] = np.where(found < 0, found * penalty, found / penalty)
    return weakened


def _keep_top_k(logits: Logits, top_k: int) -> Ids:
    """Return the ids of the `top_k` greatest logits; equal last logits are all kept."""
    if not 0 < top_k < logits.size:
        every = logits.min() > -np.inf
        return _ids_below(logits.size) if every else np.flatnonzero(logits > -np.inf)
    ids = _among_greatest(logits, top_k)
    found = logits[ids]
    floor = max(np.partition(found, -top_k)[-top_k], np.finfo(found.dtype).min)
    kept: Ids = ids[found >= floor]
    return kept


def _among_greatest(logits: Logits, count: int) -> Ids:
    """Return ascending ids that include the ids of the `count` greatest logits.

    The logits are divided into groups. The greatest logits of the `count` best groups
    are `count` logits. So a logit that is less than all of these cannot be among the
    `count` greatest. In most cases few ids remain, without sorting all logits.
    """
    groups = logits.size // _GROUP
    if count > groups:
        return np.arange(logits.size)
    tops = logits[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    floor = float(np.partition(tops, -count)[-count])
    return np.flatnonzero(logits >= floor)


def _keep_top_p(scores: Scores, top_p: float) -> Ids:
    """Return ascending indices of the likeliest tokens, of total probability `top_p`.

    Tokens with a probability below (1 - top_p) / n are excluded first, where n is the
    number of scores: all such tokens together have less than the probability that may
    be excluded. In most cases few tokens remain to be sorted.
    """
    chances = np.exp(scores)
    chances /= chances.sum()
    likely = np.flatnonzero(chances > (1 - top_p) / chances.size)
    if not likely.size:  # top_p is 0 or very small
        return np.array([scores.argmax()])
    kept, likely, share = _halve(chances, likely, top_p)
    order = likely[np.argsort(-chances[likely], kind="stable")]
    count = int(np.searchsorted(chances[order].cumsum(), share, side="left")) + 1
    is_kept = np.zeros(scores.size, np.bool_)
    for indices in (*kept, order[:count]):
        is_kept[indices] = True
    return np.flatnonzero(is_kept)


@lru_cache(maxsize=1)
def _ids_below(size: int) -> Ids:
    ids = np.arange(size)
    ids.flags.writeable = False
    return ids


def _halve(chances: Scores, likely: Ids, share: float) -> tuple[list[Ids], Ids, float]:
    """Narrow down which tokens are the likeliest with the total probability `share`.

    Stop when few tokens are undecided. Tokens of equal probability stay together, so
    that a later stable sort orders them by id.

    Args:
        chances: float [n], the probability of each token.
        likely: indices of the tokens that may be among the likeliest.
        share: the total probability to reach.

    Returns:
        kept: indices of tokens that are certainly among the likeliest.
        likely: indices of tokens that are undecided.
        share: the total probability that the tokens taken from `likely` have to reach.
    """
    kept = []
    while likely.size > _FEW:
        found = chances[likely]
        above = found > found.mean()
        upper = np.flatnonzero(above)  # indexing by it is many times faster
        if upper.size in (0, found.size):  # all are equal
            break
        reached = float(found[upper].sum())
        if reached < share:
            kept.append(likely[upper])
            likely, share = likely[np.flatnonzero(~above)], share - reached
        else:
            likely = likely[upper]
    return kept, likely, share


def _check_best(best: float, most: float = math.nan) -> None:
    """Check that a row's logits can be sampled from, given the greatest of them.

    Args:
        best: the greatest logit; NaN if any logit is NaN.
        most: infinity to refuse an infinite logit; NaN to allow it.

    Raises:
        UnusableLogits: the greatest logit is NaN, minus infinity, or `most`.
    """
    if math.isnan(best):
        raise UnusableLogits(reason="NaN is among them")
    if best == -math.inf:
        raise UnusableLogits(reason="all of them are minus infinity")
    if best == most:
        raise UnusableLogits(reason="infinity is among them")
