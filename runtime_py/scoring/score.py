"""`score_tokens`: how many bits a model needs for the tokens of a text.

In: a program and tokens. Out: a `Score`.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Final

import numpy as np

from kvc.runtime.generation.log_probabilities import log_probabilities
from kvc.runtime.scoring.divergence import Beside, Divergence, Exact
from kvc.runtime.scoring.scorers import Logits, Scorer, cut_windows, find_scorer
from kvc.runtime.sessions.program import Program
from kvc.schema.errors import BadSetting, UnusableLogits
from kvc.schema.frozen import frozen

ScoreProgress = Callable[[int, int], None]  # tokens done, tokens in all

_USUAL_WINDOW: Final = 1024


@frozen
class Score:
    """The bits that a model needs for a text.

    Attributes:
        bits: the sum of the bits of all scored tokens.
        tokens: the number of scored tokens.
        window, stride: the length of a window and the distance between two windows, in
            tokens.
        method: the method that computed the logits.
        seconds: the time of running and scoring, without the time of the reference
            model `against`. The first calls run once before the measurement, so the
            time excludes loading.
        divergence: the divergence from the reference model `against`, None if no
            reference was given.
    """

    bits: float
    tokens: int
    window: int
    stride: int
    method: str
    seconds: float
    divergence: Divergence | None = None

    @property
    def bits_per_token(self) -> float:
        """Return the mean number of bits per token, 0 if no token is scored."""
        return self.bits / self.tokens if self.tokens else 0.0

    @property
    def perplexity(self) -> float:
        """Return 2 to the power of the bits per token."""
        return math.inf if self.bits_per_token > 1023 else 2**self.bits_per_token


def score_tokens(
    program: Program,
    tokens: Sequence[int],
    window: int | None = None,
    stride: int | None = None,
    start: Sequence[int] = (),
    progress: ScoreProgress | None = None,
    against: Program | None = None,
) -> Score:
    """Return how many bits a model needs for a text.

    Args:
        program: a program with the roles "prefill" and "decode", or a method that
            returns the logits of all positions.
        tokens: the tokens of the text.
        window: the number of tokens in the model's context; default: 1,024, or the
            model's limit if it is lower.
        stride: the distance from the start of a window to the start of the next, in
            tokens; default: half a window.
        start: tokens at the beginning of each window, such as a beginning-of-text
            token. These tokens are not scored. If there are none, the first token of
            the text is not scored.
        progress: called with the number of finished tokens and the number of all
            tokens.
        against: a reference program, such as the same model in float32. It runs the
            same windows, and its distributions are compared with those of `program`.

    Raises:
        BadSetting: `window` or `stride` is impossible, there is no token to score, or
            the models have different vocabulary sizes.
        UnknownName: a program has no methods that can score.
        InputMismatch: a token is not in the vocabulary.
        UnusableLogits: logits hold NaN or only infinities.
        KvcError: as `Session.call`.
    """
    report = progress or (lambda done, total: None)
    bits, counted = 0.0, 0
    with ExitStack() as opened:
        scorers = [
            find_scorer(one, opened.enter_context(one.session()))
            for one in (program, against)
            if one is not None
        ]
        scorer, beside = scorers[0], [Beside(one) for one in scorers[1:]]
        length, step = _window(scorers, window, stride, len(start))
        began = 0.0
        for part in cut_windows(len(tokens), length, step, bool(start)):
            report(part.first, len(tokens))
            seen = [*start, *tokens[part.begin : part.end]]
            first = len(start) + part.first - part.begin
            if not counted:
                for one in scorers:
                    _warm_up(one, seen, first)
                began = time.perf_counter()
            for other in beside:
                other.begin(seen, first)
            at = first
            for logits in scorer.logits(seen, first):
                chosen = seen[at : at + len(logits)]
                _check_tokens(logits, chosen)
                expected = log_probabilities(logits)
                bits += _bits(expected, chosen)
                at += len(logits)
                for other in beside:
                    other.add(expected)
            counted += part.end - part.first
    if not counted:
        raise BadSetting(name="text", expected="2 tokens or more", found=len(tokens))
    seconds = time.perf_counter() - began - sum(other.seconds for other in beside)
    divergence = beside[0].divergence() if beside else None
    return Score(bits, counted, length, step, scorer.method, seconds, divergence)


def _window(
    scorers: Sequence[Scorer], window: int | None, stride: int | None, start: int
) -> tuple[int, int]:
    """Return the length of a window and the stride, both in tokens.

    Raises:
        BadSetting: a window is longer than one of the models allows.
    """
    most = [one.most for one in scorers if one.most is not None]
    room = min(most) - start if most else None
    length = min(_USUAL_WINDOW, room or _USUAL_WINDOW) if window is None else window
    if room is not None and length > room:
        raise BadSetting(name="window", expected=f"up to {room}", found=length)
    return length, max(1, length // 2) if stride is None else stride


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
