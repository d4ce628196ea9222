"""`BeamSearch`: the likeliest answer, searched for in several beams at once.

In: at each step the log probabilities of each beam's next token, after processors. Out:
which beams go on with which tokens, and at the end the best answer. The algorithm, its
heuristics and its arithmetic in float32 are those of `_beam_search` in transformers 5
(generation/utils.py), for one prompt. Nothing here knows of sessions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.generation.log_probabilities import TokenLogprob
from kvc.schema.frozen import frozen
from kvc.schema.setting_checks import EarlyStopping

Scores = npt.NDArray[np.float32]

_NEVER: Final = np.float32(-1e9)  # the score of what must not be chosen


@frozen
class Beam:
    """A beginning of an answer, or a whole answer.

    Attributes:
        tokens: the tokens, with the stop token of an answer that has ended.
        score: the sum of log probabilities, as float32; of an answer that has ended,
            divided by its length to the power of the length penalty.
        parent: the index of the beam that this one continues.
        ended: whether a stop token or the limit of tokens has ended it.
        logprobs: the log probabilities of the tokens, if they were asked for.
    """

    tokens: tuple[int, ...]
    score: np.float32
    parent: int = 0
    ended: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()


class BeamSearch:
    """A search for the best answer to one prompt.

    Attributes:
        beams: the answers that go on, the best first.
        finished: the best answers that have ended, the best first; places without one
            have a score of -1e9 and are not `ended`.
        is_over: whether the search has ended.
    """

    def __init__(
        self,
        count: int,
        stop_tokens: Sequence[int],
        most: int,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> None:
        """Begin with empty answers, of which only the first counts.

        Args:
            count: the number of beams.
            stop_tokens: tokens that end an answer.
            most: the greatest number of tokens of an answer, 1 or more.
            length_penalty: the power of the length that divides an answer's score.
            early_stopping: when to stop, as in `GenerationSettings`.
        """
        self._count, self._most = count, most
        self._stops = frozenset(stop_tokens)
        self._kept = max(2, 1 + len(self._stops)) * count
        self._penalty, self._early = length_penalty, early_stopping
        self._may_improve = True
        self.is_over = False
        none = Beam((), _NEVER)
        self.beams = (Beam((), np.float32(0)), *[none] * (count - 1))
        self.finished: tuple[Beam, ...] = (none,) * count

    @property
    def best(self) -> Beam:
        """Return the best answer that has ended."""
        return self.finished[0]

    @property
    def best_so_far(self) -> Beam:
        """Return the best answer that has ended, or the best beam if none has."""
        return self.best if self.best.ended else self.beams[0]

    def step(
        self,
        scores: Scores,
        describe: Callable[[int, int], tuple[TokenLogprob, ...]] = lambda *_: (),
    ) -> None:
        """Continue the beams by one token each; `parent` tells from which beam.

        Args:
            scores: the log probability of each token after each beam, after processors:
                float32 [beams, vocab].
            describe: returns what to add to `Beam.logprobs` for a beam's index and the
                token that continues it.
        """
        found = [
            replace(
                beam, logprobs=beam.logprobs + describe(beam.parent, beam.tokens[-1])
            )
            for beam in self._continuations(scores)
        ]
        ended = np.array([beam.ended for beam in found])
        totals = np.array([beam.score for beam in found], np.float32)
        running = np.where(ended, totals + _NEVER, totals)
        self.beams = tuple(
            replace(found[index], score=running[index])
            for index in _greatest(running, self._count)
        )
        self._finish(found)
        self._may_improve &= self._can_improve()
        full = self._early is True and all(beam.ended for beam in self.finished)
        self.is_over = not self._may_improve or full or bool(ended.all())

    def _continuations(self, scores: Scores) -> list[Beam]:
        """Return the likeliest continuations of all beams, the likeliest first."""
        before = np.array([beam.score for beam in self.beams], np.float32)
        totals = (scores + before[:, None]).ravel()
        made = []
        for index in _greatest(totals, self._kept):
            parent, token = divmod(int(index), scores.shape[1])
            tokens = (*self.beams[parent].tokens, token)
            ended = token in self._stops or len(tokens) >= self._most
            logprobs = self.beams[parent].logprobs
            made.append(Beam(tokens, totals[index], parent, ended, logprobs))
        return made

    def _finish(self, found: Sequence[Beam]) -> None:
        """Keep the best of the answers that have ended, earlier or with this step.

        A new answer counts if it is among the best continuations, one for each beam.
        """
        length = np.float32(len(found[0].tokens) ** self._penalty)
        full = self._early is True and all(beam.ended for beam in self.finished)
        open_ = self._may_improve and not full
        new = []
        for place, beam in enumerate(found):
            counts = beam.ended and place < self._count
            score = beam.score / length
            score += np.float32(0) if open_ else _NEVER
            score += np.float32(0) if counts else _NEVER
            new.append(replace(beam, score=np.float32(score), ended=counts))
        merged = (*self.finished, *new)
        totals = np.array([beam.score for beam in merged], np.float32)
        self.finished = tuple(merged[n] for n in _greatest(totals, self._count))

    def _can_improve(self) -> bool:
        """Tell whether a running beam may still become better than the finished ones.

        With `early_stopping` False this assumes that an answer does not get better by
        its length, so that a length penalty can make it wrong.
        """
        length = len(self.beams[0].tokens)
        if self._early == "never" and self._penalty > 0:
            length = self._most
        reachable = self.beams[0].score / np.float32(length**self._penalty)
        worst = min(beam.score for beam in self.finished)
        return any(
            bool(reachable > (worst if beam.ended else _NEVER))
            for beam in self.finished
        )


def _greatest(totals: Scores, count: int) -> npt.NDArray[np.int64]:
    """Return the indices of the greatest numbers, the greatest first.

    Of equal numbers the first comes first.
    """
    count = min(count, totals.size)
    floor = np.partition(totals, -count)[-count]
    likely = np.flatnonzero(totals >= floor)
    order = likely[np.argsort(-totals[likely], kind="stable")]
    return order[:count].astype(np.int64)
