"""Tokens that say when something was said: which may come next, and what they part.

In: the tokens of an answer so far, logits float32 [vocab]; or a finished answer. Out:
logits without the tokens that cannot come; or the parts of the answer with their times,
and where the next window begins. The rules are those of transformers 5
(`WhisperTimeStampLogitsProcessor`, `_retrieve_segment`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvc.schema.frozen import frozen

Logits = npt.NDArray[np.float32]


@frozen
class Part:
    """Tokens that were said from one moment of a window to another, in steps."""

    start: float
    end: float
    tokens: tuple[int, ...]


@frozen
class Timestamps:
    """The tokens of moments, one for each step of time.

    Attributes:
        begin: the token of the first moment of a window; all after it are later ones.
        none: says in a prompt that there are no such tokens.
        stop: ends a text; those before it are text.
        latest: the last step at which an answer may begin, None for any.
    """

    begin: int
    none: int
    stop: int
    latest: int | None

    def allowed(self, logits: Logits, said: Sequence[int]) -> Logits:
        """Return logits without the tokens that cannot follow an answer so far."""
        left = logits.astype(np.float32, copy=True)
        left[self.none] = -np.inf
        told = [token >= self.begin for token in said]
        if told[-1:] == [True]:
            if all(told[-2:]):
                left[self.begin :] = -np.inf  # a pair is complete: text follows
            else:
                left[: self.stop] = -np.inf  # one that begins, or the end
        left[self.begin : self._earliest(said, told)] = -np.inf
        if not said:
            left[: self.begin] = -np.inf
            if self.latest is not None:
                left[self.begin + self.latest + 1 :] = -np.inf
        if _together(left[self.begin :]) > left[: self.begin].max():
            left[: self.begin] = -np.inf
        return left

    def _earliest(self, said: Sequence[int], told: Sequence[bool]) -> int:
        """Return the first moment that may follow: time does not go back."""
        if not any(told):
            return self.begin
        last = max(i for i, is_moment in enumerate(told) if is_moment)
        opens = list(told[-2:]) == [False, True]
        return said[last] if opens else said[last] + 1

    def parts(
        self, said: Sequence[int], steps: float
    ) -> tuple[list[Part], float | None]:
        """Return the parts of a window's answer, and where the next window begins.

        Args:
            said: its tokens, without the one that ends it.
            steps: how many the window has.

        Returns:
            The parts, and the step at which the next window begins: None where this one
            was heard to its end.
        """
        told = [token >= self.begin for token in said]
        pairs = [i + 1 for i in range(len(said) - 1) if told[i] and told[i + 1]]
        ends_once = told[-2:] == [False, True]
        if not pairs:
            last = [i for i, is_moment in enumerate(told) if is_moment][-1:]
            known = last and said[last[0]] != self.begin
            end = said[last[0]] - self.begin if known else steps
            return [Part(0, end, tuple(said))], None
        cuts = [*pairs, len(said)] if ends_once else [*pairs[:-1], pairs[-1] + 1]
        found = []
        for number, (first, cut) in enumerate(zip([0, *cuts], cuts, strict=False)):
            tokens = tuple(said[first:cut])
            is_whole = number < len(cuts) - 1 or ends_once
            closing = tokens[-1] if is_whole else tokens[-2]
            found.append(Part(tokens[0] - self.begin, closing - self.begin, tokens))
        return found, None if ends_once else said[cuts[-1] - 2] - self.begin


def _together(logits: Logits) -> float:
    """Return the logarithm of the sum of what logits are logarithms of."""
    best = float(logits.max(initial=-np.inf))
    if best == -np.inf:
        return best
    return best + float(np.log(np.exp(logits - np.float32(best)).sum()))
