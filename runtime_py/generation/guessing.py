"""Guessers of next tokens, for `drafting.py`: a draft model, or the text so far.

In: the tokens so far, and how many guesses are wanted. Out: guesses. Wrong guesses cost
time alone, since the target checks each.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.logits import Ids, Logits


class Guesser(Protocol):
    """Guesses the next tokens of one row.

    Attributes:
        feeder: the feeder of the guesser's session, None without one.
    """

    feeder: Feeder | None

    def reset(self) -> None:
        """Drop what earlier generations may have left in the session."""
        ...

    def begin(self, sequence: Sequence[int]) -> None:
        """Take the tokens up to the end of the prompt."""
        ...

    def guess(self, answer: Answer, sequence: Sequence[int], count: int) -> list[int]:
        """Return at most `count` guesses of the tokens after those so far.

        Args:
            answer: the answer, whose chooser has chosen all tokens so far.
            sequence: the tokens that the session lacked, up to the newest token.
            count: the greatest number of guesses, 1 or more.
        """
        ...

    def keep(self, before: int, accepted: int, guessed: int) -> None:
        """Note how many of the latest guesses were right; forget the wrong ones.

        Args:
            before: the length of `sequence` when the guesses were made.
            accepted: how many of the first guesses were right.
            guessed: how many guesses were checked.
        """
        ...

    def follow(self, missing: Sequence[int]) -> None:
        """Take tokens that the session lacks, if it has room for them."""
        ...


class DraftModel(Guesser):
    """Guesses with a smaller model, whose session holds the tokens so far."""

    def __init__(self, feeder: Feeder) -> None:
        """Use a session of one row, which can be rewound."""
        self.feeder: Feeder = feeder

    def reset(self) -> None:
        """Rewind the session to its tokens before the generation."""
        self.feeder.go_back(0, 0, 0)

    def begin(self, sequence: Sequence[int]) -> None:
        """Run the prompt, if the session has room for it."""
        if self._takes(sequence):
            self.feeder.feed_prompts([sequence])

    def guess(self, answer: Answer, sequence: Sequence[int], count: int) -> list[int]:
        """Return what the model samples with the random numbers of the answer."""
        (row,) = self.feeder.rows
        if row.room is not None:
            count = min(count, row.room + row.fed - len(sequence) + 1)
        if count < 1:
            return []
        chooser, stop_tokens = answer.chooser.copy(), answer.stop_tokens
        guesses = [chooser.choose(self._run(sequence[row.fed :]))]
        while len(guesses) < count and guesses[-1] not in stop_tokens:
            guesses.append(chooser.choose(self.feeder.feed(guesses[-1:])[0]))
        if guesses[-1] in stop_tokens:  # the target samples it without running it
            guesses.pop()
        return guesses

    def keep(self, before: int, accepted: int, guessed: int) -> None:
        """Rewind the session to the accepted guesses."""
        self.feeder.go_back(before + accepted, before - 1, before + accepted)

    def follow(self, missing: Sequence[int]) -> None:
        """Run tokens, if the session has room for them."""
        if missing and self._takes(missing):
            self._run(missing)

    def _run(self, tokens: Sequence[int]) -> Logits:
        return self.feeder.feed_parts([tokens]).reshape(-1)

    def _takes(self, tokens: Sequence[int]) -> bool:
        room = self.feeder.rows[0].room
        return room is None or len(tokens) <= room


class PromptLookup(Guesser):
    """Guesses that the text goes on as it did after the same tokens before.

    Saxena 2023, Prompt Lookup Decoding: good for answers that repeat their prompt, such
    as summaries and edits. More tokens are guessed after right guesses, fewer after
    wrong ones; and after wrong ones more tokens must be the same, so that a text that
    repeats nothing takes little longer. The numbers of guesses are few, since a session
    binds a method anew for each number of tokens.
    """

    _COUNTS: Final = (1, 7, 15)
    _ENOUGH: Final = 2  # right guesses in a row before more are made
    _LEAST_SAME: Final = 2  # tokens that are compared
    _MOST_SAME: Final = 5

    def __init__(self, least: int = 1) -> None:
        """Begin with the fewest guesses.

        Args:
            least: the fewest guesses that one call can check.
        """
        self.feeder = None
        self._counts = [one for one in self._COUNTS if one >= least] or [least]
        self._same, self._level, self._in_a_row = self._LEAST_SAME, 0, 0

    def reset(self) -> None:
        """Do nothing: there is no session."""

    def begin(self, sequence: Sequence[int]) -> None:
        """Do nothing: the answer has the tokens."""

    def guess(self, answer: Answer, sequence: Sequence[int], count: int) -> list[int]:
        """Return the tokens that followed the newest tokens the last time."""
        tokens = answer.chooser.tokens
        start = _latest(tokens, self._same, self._MOST_SAME)
        if start is None:
            return []
        most = min(count, self._counts[self._level])
        guesses: list[int] = []
        for token in tokens[start : start + most].tolist():
            if token in answer.stop_tokens:
                break
            guesses.append(token)
        fitting = [size for size in self._counts if size <= len(guesses)]
        return guesses[: max(fitting, default=0)]

    def keep(self, before: int, accepted: int, guessed: int) -> None:
        """Adapt how much is guessed, and after how many equal tokens."""
        if not guessed:
            return
        right = accepted == guessed
        self._in_a_row = self._in_a_row + guessed if right else 0
        if self._in_a_row >= self._ENOUGH:
            self._level = min(self._level + 1, len(self._counts) - 1)
        elif not right:
            again = 2 * accepted > guessed
            self._level = min(int(again), len(self._counts) - 1)
        same = self._same - 1 if right else self._same + (accepted == 0)
        self._same = min(max(same, self._LEAST_SAME), self._MOST_SAME)

    def follow(self, missing: Sequence[int]) -> None:
        """Do nothing: there is no session."""


def _latest(tokens: Ids, least: int, most: int) -> int | None:
    """Return where the text went on when its newest tokens were there before.

    Of all earlier places after at least `least` of the newest tokens, the one is chosen
    that has most of them before it, up to `most`; of several the latest.
    """
    places, same = np.flatnonzero(tokens[:-1] == tokens[-1:]), 1
    while same < min(most, tokens.size - 1):
        longer = places[places >= same]
        longer = longer[tokens[longer - same] == tokens[-1 - same]]
        if not longer.size:
            break
        places, same = longer, same + 1
    return int(places[-1]) + 1 if places.size and same >= least else None
