"""Guessers of next tokens, for `drafting.py`: a draft model, or the text so far.

In: the tokens of each row so far, and how many guesses are wanted. Out: guesses. Wrong
guesses cost time alone, since the target checks each.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.logits import Ids

Rows = Sequence[Sequence[int]]  # tokens of each row


class Guesser(Protocol):
    """Guesses the next tokens of each row.

    Attributes:
        feeder: the feeder of the guesser's session, None without one.
    """

    feeder: Feeder | None

    def reset(self) -> None:
        """Drop what earlier generations may have left in the session."""
        ...

    def begin(self, sequences: Rows) -> None:
        """Take the tokens of each row up to the end of its prompt."""
        ...

    def guess(
        self, answers: Sequence[Answer], sequences: Rows, counts: Sequence[int]
    ) -> list[list[int]]:
        """Return guesses of the tokens after those so far, for each row.

        Args:
            answers: the answers, whose choosers have chosen all tokens so far.
            sequences: the tokens that each row of the session lacked, up to the newest
                token.
            counts: the greatest number of guesses for each row, 0 or less for none.
        """
        ...

    def keep(
        self, before: Sequence[int], accepted: Sequence[int], guessed: Sequence[int]
    ) -> None:
        """Note how many of the latest guesses were right; forget the wrong ones.

        Args:
            before: the length of each row's sequence when the guesses were made.
            accepted: how many of the first guesses of each row were right.
            guessed: how many guesses of each row were checked.
        """
        ...

    def follow(self, missing: Rows) -> None:
        """Take tokens that rows of the session lack, if these have room for them."""
        ...


class DraftModel(Guesser):
    """Guesses with a smaller model, whose session holds the tokens so far."""

    def __init__(self, feeder: Feeder) -> None:
        """Use a session of as many rows as the target, which can be rewound."""
        self.feeder: Feeder = feeder

    def reset(self) -> None:
        """Rewind the session to its tokens before the generation."""
        self.feeder.go_back([(0,)] * len(self.feeder.rows))

    def begin(self, sequences: Rows) -> None:
        """Run the prompts of those rows that have room for them."""
        if any(fitting := self._fitting(sequences)):
            self.feeder.feed_prompts(fitting)

    def guess(
        self, answers: Sequence[Answer], sequences: Rows, counts: Sequence[int]
    ) -> list[list[int]]:
        """Return what the model samples with the random numbers of the answers."""
        guesses: list[list[int]] = [[] for _ in answers]
        parts: list[Sequence[int]] = [()] * len(answers)
        limits = self._limits(sequences, counts)
        choosers = {row: answers[row].chooser.copy() for row in limits}
        for row in limits:
            parts[row] = sequences[row][self.feeder.rows[row].fed :]
        while choosers:
            logits = self.feeder.feed_parts(parts)
            parts = [()] * len(answers)
            for row, chooser in [*choosers.items()]:
                token = chooser.choose(logits[row])
                ends = token in answers[row].stop_tokens
                if not ends:  # a target samples a stop token without running it
                    guesses[row].append(token)
                if ends or len(guesses[row]) == limits[row]:
                    del choosers[row]
                else:
                    parts[row] = (token,)
        return guesses

    def keep(
        self, before: Sequence[int], accepted: Sequence[int], guessed: Sequence[int]
    ) -> None:
        """Rewind each row to the accepted guesses."""
        self.feeder.go_back(
            [
                range(begin + right, begin - 2, -1)
                for begin, right in zip(before, accepted, strict=True)
            ]
        )

    def follow(self, missing: Rows) -> None:
        """Run tokens of those rows that have room for them."""
        if any(fitting := self._fitting(missing)):
            self.feeder.feed_parts(fitting)

    def _limits(self, sequences: Rows, counts: Sequence[int]) -> dict[int, int]:
        """Return how many guesses each row can have; rows without any are left out."""
        found = {}
        for number, row in enumerate(self.feeder.rows):
            limit = counts[number]
            if row.room is not None:
                limit = min(limit, row.room + row.fed - len(sequences[number]) + 1)
            if limit > 0:
                found[number] = limit
        return found

    def _fitting(self, parts: Rows) -> Rows:
        rooms = [row.room for row in self.feeder.rows]
        return [
            part if room is None or len(part) <= room else ()
            for part, room in zip(parts, rooms, strict=True)
        ]


class PromptLookup(Guesser):
    """Guesses that the text of each row goes on as it did after the same tokens.

    The numbers of guesses are few, since a session binds a method anew for each number
    of tokens.
    """

    _COUNTS: Final = (1, 7, 15)
    _COUNTS_OF_ROWS: Final = (1, 3, 7, 15)  # padding of other rows has its cost too

    def __init__(self, rows: int = 1, least: int = 1) -> None:
        """Begin with the fewest guesses.

        Args:
            rows: the number of rows.
            least: the fewest guesses that one call can check.
        """
        self.feeder = None
        counts = self._COUNTS if rows == 1 else self._COUNTS_OF_ROWS
        fitting = [count for count in counts if count >= least] or [least]
        self._rows = [_RowLookup(fitting) for _ in range(rows)]

    def reset(self) -> None:
        """Do nothing: there is no session."""

    def begin(self, sequences: Rows) -> None:
        """Do nothing: the answers have the tokens."""

    def guess(
        self, answers: Sequence[Answer], sequences: Rows, counts: Sequence[int]
    ) -> list[list[int]]:
        """Return the tokens that followed the newest tokens the last time."""
        rows = zip(self._rows, answers, counts, strict=True)
        made = [row.guess(answer, n) if n > 0 else [] for row, answer, n in rows]
        return made if len(made) == 1 else _filling(made)

    def keep(
        self, before: Sequence[int], accepted: Sequence[int], guessed: Sequence[int]
    ) -> None:
        """Adapt how much is guessed, and after how many equal tokens."""
        for row, right, count in zip(self._rows, accepted, guessed, strict=True):
            if count:
                row.keep(right, count)

    def follow(self, missing: Rows) -> None:
        """Do nothing: there is no session."""


class _RowLookup:
    """Guesses from the text of one row.

    Saxena 2023, Prompt Lookup Decoding: good for answers that repeat their prompt, such
    as summaries and edits. More tokens are guessed after right guesses, fewer after
    wrong ones; and after wrong ones more tokens must be the same, so that a text that
    repeats nothing takes little longer.
    """

    _ENOUGH: Final = 2  # right guesses in a row before more are made
    _LEAST_SAME: Final = 2  # tokens that are compared
    _MOST_SAME: Final = 5

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._same, self._level, self._in_a_row = self._LEAST_SAME, 0, 0

    def guess(self, answer: Answer, count: int) -> list[int]:
        """Return at most `count` tokens that followed the newest ones before."""
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

    def keep(self, accepted: int, guessed: int) -> None:
        """Adapt to how many of the latest guesses were right."""
        right = accepted == guessed
        self._in_a_row = self._in_a_row + guessed if right else 0
        if self._in_a_row >= self._ENOUGH:
            self._level = min(self._level + 1, len(self._counts) - 1)
        elif not right:
            again = 2 * accepted > guessed
            self._level = min(int(again), len(self._counts) - 1)
        same = self._same - 1 if right else self._same + (accepted == 0)
        self._same = min(max(same, self._LEAST_SAME), self._MOST_SAME)


def _filling(guesses: list[list[int]]) -> list[list[int]]:
    """Return as many first guesses of each row as fill half of a call, or none.

    Padding costs as much as guesses, where a call of several rows is limited by sums.
    """
    for most in sorted({0, *map(len, guesses)}, reverse=True):
        filled = sum(min(len(some), most) for some in guesses)
        if 2 * filled >= most * len(guesses):
            break
    return [some[:most] for some in guesses]


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
