"""`score_tokens`: how many bits a model needs for the tokens of a text.

In: a program and tokens. Out: a `Score`.
"""

import math
from collections.abc import Callable, Sequence

from kvc.runtime.scoring.divergence import Divergence, divergence_of
from kvc.runtime.scoring.scorers import cut_tokens
from kvc.runtime.scoring.window_scores import WindowScore, WindowScorer
from kvc.runtime.sessions.program import Program
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

ScoreProgress = Callable[[int, int], None]  # tokens done, tokens in all


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
    found = list[WindowScore]()
    with WindowScorer(program, against) as scorer:
        length, step = scorer.sizes(window, stride, len(start))
        done = 0 if start else 1
        for part in cut_tokens(tokens, start, length, step):
            report(done, len(tokens))
            found.append(scorer.score(part))
            done += part.scored
    return score_of(found, length, step, scorer.method)


def score_of(
    found: Sequence[WindowScore], window: int, stride: int, method: str
) -> Score:
    """Add up the scores of windows.

    Args:
        found: the scores of all windows, in the order of the text: sums of the same
            numbers in another order would be rounded differently.
        window: the length of a window.
        stride: the distance from the start of a window to the start of the next.
        method: the method that computed the logits.

    Raises:
        BadSetting: there is no window.
    """
    if not found:
        raise BadSetting(
            name="text", expected="2 tokens or more", found="nothing to score"
        )
    bits = 0.0
    for part in found:
        for each in part.bits:
            bits += each
    compared = [part.compared for part in found if part.compared is not None]
    return Score(
        bits,
        sum(part.tokens for part in found),
        window,
        stride,
        method,
        sum(part.seconds for part in found),
        divergence_of(compared) if compared else None,
    )
