"""`Chooser`: the tokens of one row, one after the other.

In: settings, the tokens so far, logits float32 [vocab] at each step. Out: a token at
each step. Processors change the logits first; then, as in transformers 5
(generation/logits_process.py), come temperature, top-k, top-p, min-p, typical-p. No
step but the last sorts the vocabulary. All randomness comes from one generator, seeded
once.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.generation.logits import (
    CheckedProcessor,
    Ids,
    Logits,
    Processor,
    TokenBuffer,
)
from kvc.runtime.generation.settings import GenerationSettings
from kvc.schema.errors import BadSetting, UnusableLogits

Scores = npt.NDArray[np.float64]

_FEW: Final = 1024  # up to this number, tokens are sorted at once
_GROUP: Final = 64  # size of the groups whose maxima are searched first


class Chooser:
    """Chooses the tokens of one row, given settings and the tokens before them."""

    def __init__(
        self,
        settings: GenerationSettings,
        tokens: Sequence[int],
        row: int = 0,
        processors: Sequence[Processor] = (),
        forced: Callable[[Ids], int | None] | None = None,
    ) -> None:
        """Begin after some tokens.

        Args:
            settings: the settings of sampling; the row's seed is `settings.seed` +
                `row`.
            tokens: the tokens before the answer.
            row: the index of the row.
            processors: change the logits of each step, in order.
            forced: returns the only token that can follow tokens, None if there is a
                choice; None if there always is.
        """
        self._settings = settings
        self._tokens = TokenBuffer(tokens)
        self._processors, self._forced = tuple(processors), forced
        seed = None if settings.seed is None else settings.seed + row
        greedy = not settings.temperature  # numpy.random is slow to import
        self._random = None if greedy else np.random.default_rng(seed)

    @property
    def tokens(self) -> Ids:
        """Return the tokens before the answer, and all that were chosen: int64 [n]."""
        return self._tokens.array

    def copy(self) -> "Chooser":
        """Return a copy of the chooser, which will draw the same random numbers."""
        other = copy(self)
        other._random = deepcopy(self._random)
        other._tokens = self._tokens.copy()
        return other

    def go_on_from(self, other: "Chooser", chosen: Sequence[int]) -> None:
        """Continue the tokens and random numbers of another chooser.

        Args:
            other: the chooser, which is not used any more.
            chosen: the tokens that it has chosen.
        """
        for token in chosen:
            self._tokens.append(token)
        self._random = other._random

    def force(self) -> int | None:
        """Return the next token if there is no choice, whatever the logits; or None."""
        if self._forced is None:
            return None
        token = self._forced(self._tokens.array)
        if token is not None:
            self._tokens.append(token)
        return token

    def scores(self, answer: Sequence[int], logits: Logits) -> Logits:
        """Return the logits of the token after an answer, changed by the processors.

        Args:
            answer: tokens after those that the chooser began with.
            logits: float32 [vocab].

        Returns:
            float32 [vocab]; of a token that is forced, 0, and -inf of all others.

        Raises:
            UnusableLogits: a forced token is not in the vocabulary.
            BadSetting: a processor of the caller does not return logits.
        """
        tokens = np.concatenate([self._tokens.array, np.array(answer, np.int64)])
        token = None if self._forced is None else self._forced(tokens)
        if token is None:
            changed = logits
            for process in self._processors:
                changed = process(tokens, changed)
            if math.isnan(changed.max()):
                self._check_processors(logits)
            return changed
        if token >= logits.size:
            reason = f"they are for {logits.size} tokens, and token {token} is forced"
            raise UnusableLogits(reason=reason)
        only = np.full_like(logits, -np.inf)
        only[token] = 0
        return only

    def choose(self, logits: Logits) -> int:
        """Return the next token.

        Raises:
            UnusableLogits: the logits hold NaN, or allow no token.
            BadSetting: a processor of the caller does not return logits.
        """
        token = self.force()
        if token is None:
            changed = logits
            for process in self._processors:
                changed = process(self._tokens.array, changed)
            try:
                token = choose_token(changed, self._settings, self._random)
            except UnusableLogits:
                self._check_processors(logits)
                raise
            self._tokens.append(token)
        return token

    def _check_processors(self, logits: Logits) -> None:
        """Check that usable logits are still usable after each processor.

        Raises:
            BadSetting: a processor of the caller makes NaN, or leaves no token.
            UnusableLogits: a setting, or the form of the answer, leaves no token.
        """
        for process in self._processors:
            if not math.isfinite(logits.max()):
                return  # they are the model's
            logits = process(self._tokens.array, logits)
            most = float(logits.max())
            if math.isfinite(most):
                continue
            if isinstance(process, CheckedProcessor):
                expected = "to return logits of which one is finite and none is NaN"
                found = "NaN among them" if math.isnan(most) else f"at most {most}"
                raise BadSetting(name=process.name, expected=expected, found=found)
            reason = "settings or the form of the answer leave no token to choose"
            raise UnusableLogits(reason=reason)


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
        logits: float32 [vocab], after the processors.
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
    if settings.typical_p < 1:
        kept = _keep_typical(scores, settings.typical_p)
        ids, scores = ids[kept], scores[kept]
    return ids, scores


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


def _keep_typical(scores: Scores, mass: float) -> Ids:
    """Return ascending indices of typical tokens, of total probability `mass`.

    A token is the more typical the nearer its information is to the entropy of all
    (Meister et al. 2023, Locally Typical Sampling).
    """
    chances = np.exp(scores)
    chances /= chances.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = -np.log(chances)
        entropy = np.nansum(information * chances)
        distance = np.abs(information - entropy)
    order = np.argsort(distance, kind="stable")
    reached = chances[order].cumsum()
    last = min(int((reached < mass).sum()), order.size - 1)
    return np.flatnonzero(distance <= distance[order[last]])


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
