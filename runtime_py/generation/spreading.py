"""Run one prompt once, and continue it in all rows of a session.

    prompt --Feeder of a session of one row--> logits, states --copies--> each row
      --`SpreadDecoding`--> several answers   --`BeamDecoding`--> the best answer

In: a session of several rows, of which row 0 holds the text so far; one prompt. Out:
the source of tokens of a generation. The session of one row stays open until rows need
no more copies of it.
"""

import time
from collections.abc import Iterable, Sequence

import numpy as np

from kvc.runtime.generation.answer import Answer, EndReason, Row
from kvc.runtime.generation.beams import BeamSearch
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.log_probabilities import (
    TokenLogprob,
    log_probabilities,
    token_logprob,
)
from kvc.runtime.generation.logits import Logits
from kvc.runtime.generation.session_rows import positions
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import BadSetting, UnknownName


def open_seed(session: Session, is_anew: bool) -> Session:
    """Open a session of one row that holds what row 0 of a session holds.

    Args:
        session: a session of several rows.
        is_anew: whether an encoder will reset the content, so that none is copied.

    Raises:
        BadSetting: sessions of the program cannot have one row.
        StateMismatch: rows of the session are not independent.
        OutOfMemory, Poisoned, Busy, Closed, Forked: as `Session.fork`.
    """
    try:
        seed = session.one_row()
    except (UnknownName, BadSetting) as error:
        expected = "a program whose sessions may have one row, for n and num_beams"
        raise BadSetting(
            name="session", expected=expected, found="a fixed number of rows"
        ) from error
    if not is_anew:
        try:
            seed.admit(0, session)
        except BaseException:
            seed.close()
            raise
    return seed


class RowsFeeder(Feeder):
    """The feeder of a session whose rows take copies of a session of one row."""

    def __init__(self, session: Session, seed: Feeder) -> None:
        """Find the methods of a session of several rows.

        Raises:
            KvcError: as `Feeder`.
        """
        super().__init__(session, len(positions(session) or [None]))
        self._seed = seed
        for row in self.rows:
            row.start = seed.rows[0].start

    def take_seed(self, rows: Iterable[int]) -> None:
        """Copy the session of one row into some rows.

        Raises:
            StateMismatch: other code has used the session.
            CacheOverflow, Poisoned, Busy, Closed, Forked: as `Session.admit`.
        """
        self._check_alone("admit")
        for row in rows:
            self.session.admit(row, self._seed.session)
            self.rows[row].fed = self._seed.rows[0].fed
            self._changes = self.session.changes

    def copy_rows(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy rows to others, given as pairs of source and target.

        Raises:
            StateMismatch: other code has used the session.
            Poisoned, Busy, Closed, Forked: as `Session.copy_row`.
        """
        self._check_alone("copy_row")
        for source, target in copies:
            self.session.copy_row(source, target)
            self.rows[target].fed = self.rows[source].fed
            self._changes = self.session.changes


class SpreadDecoding(Decoding):
    """Source of the tokens of several answers to one prompt, one in each row."""

    def __init__(self, seed: Feeder, session: Session) -> None:
        """Take over the session of one row, which is closed after the prompt.

        Raises:
            KvcError: as `Feeder`.
        """
        self._spread = RowsFeeder(session, seed)
        super().__init__(self._spread)
        self._seed, self.prefill = seed, seed.prefill
        self.logprobs = [*seed.logprobs] * len(self.rows)

    def begin(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Run the prompt once, copy it to all rows; return the first tokens.

        Raises:
            KvcError: as `Decoding.begin`.
        """
        logits = self._run_prompt(answers[0])
        self._seed.session.close()
        return [answer.choose(logits) for answer in answers]

    def end(self) -> None:
        """Close the session of one row."""
        self._seed.session.close()

    def _run_prompt(self, answer: Answer) -> Logits:
        """Run the prompt, and copy it to all rows; return its logits, float32 [vocab].

        Raises:
            KvcError: as `Decoding.begin`.
        """
        self._spread.take_seed(())  # fails before anything runs
        logits = self._seed.feed_prompts([answer.prompt])
        self._spread.take_seed(range(len(self._spread.rows)))
        last: Logits = logits[0]
        return last


class BeamAnswer(Answer):
    """An answer that is whole before its first token is taken.

    Attributes:
        decided: the tokens of the answer, with its stop token; empty during the search.
        search: the search for the answer, None before it.
    """

    decided: tuple[int, ...] = ()
    search: BeamSearch | None = None

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the tokens of prompt and answer that row 0 has not run yet."""
        return self.decided[-1:] or super().pending

    @property
    def found(self) -> Sequence[int]:
        """Return the best answer so far, without a stop token."""
        if self.tokens or self.search is None:
            return self.tokens
        best = self.search.best_so_far.tokens
        return best[:-1] if best and best[-1] in self.stop_tokens else best

    def _limit(self) -> EndReason | None:
        if len(self.tokens) < len(self.decided):
            return None
        return "max_tokens" if self.wanted == 0 else "length"


class BeamDecoding(SpreadDecoding):
    """Source of the tokens of the best answer, which a search for beams has found."""

    def __init__(
        self, seed: Feeder, session: Session, settings: GenerationSettings
    ) -> None:
        """Take over the session of one row, which is closed at the end.

        Raises:
            KvcError: as `Feeder`.
        """
        super().__init__(seed, session)
        self.rows: Sequence[Row] = self._spread.rows[:1]
        self._settings = settings
        self._left = list[int]()  # tokens of the answer, the last first

    def begin(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Search for the best answer; return its first token.

        Afterwards row 0 of the session holds the prompt and the answer, except for the
        answer's last token.

        Raises:
            KvcError: as `Decoding.begin`.
        """
        (answer,) = answers
        assert isinstance(answer, BeamAnswer)
        logits = self._run_prompt(answer)
        most = most_tokens(answer, self._seed.rows[0])
        began = time.perf_counter()
        best = self._search(answer, logits, most).best
        if len(best.tokens) > 1:
            self._seed.feed_parts([best.tokens[:-1]])
        self._spread.take_seed([0])
        self._seed.session.close()
        self.score, answer.decided = float(best.score), best.tokens
        answer.logprobs.extend(best.logprobs)
        self.decode.seconds += time.perf_counter() - began
        self._left = [*reversed(best.tokens)]
        return [self._left.pop()]

    def follow(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Return the next token of the answer."""
        return [self._left.pop()]

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Store in the session the tokens that are to run next in row 0."""
        others: list[tuple[int, ...]] = [()] * (len(self._spread.rows) - 1)
        super().leave_pending([*tokens, *others])

    def _search(self, answer: BeamAnswer, logits: Logits, most: int) -> BeamSearch:
        """Search for the best answer.

        Args:
            answer: the empty answer.
            logits: those after the prompt, float32 [vocab].
            most: the greatest number of tokens of an answer.
        """
        said = self._settings
        answer.search = search = BeamSearch(
            said.num_beams,
            said.stop_tokens,
            most,
            said.length_penalty,
            said.early_stopping,
        )
        rows = list(range(said.num_beams))  # of each beam
        step: Logits = np.tile(logits, (said.num_beams, 1))
        while True:
            self._step(search, answer, step[rows])
            if search.is_over:
                return search
            rows = self._move(rows, [beam.parent for beam in search.beams])
            parts: list[tuple[int, ...]] = [()] * len(rows)
            for row, beam in zip(rows, search.beams, strict=True):
                parts[row] = beam.tokens[-1:]
            step = self._spread.feed_parts(parts)

    def _step(self, search: BeamSearch, answer: Answer, logits: Logits) -> None:
        """Continue each beam, given its logits, float32 [beams, vocab]."""
        exact = log_probabilities(logits)
        beams = zip(search.beams, exact.astype(np.float32), strict=True)
        scores = [answer.chooser.scores(beam.tokens, one) for beam, one in beams]
        count = self._settings.logprobs

        def describe(parent: int, token: int) -> tuple[TokenLogprob, ...]:
            if count is None:
                return ()
            return (token_logprob(exact[parent], token, count),)

        search.step(np.stack(scores), describe)

    def _move(self, rows: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Copy rows so that each new beam has one; return the row of each.

        The first beam that continues another keeps its row. Each further one takes a
        row that no beam continues: there are as many. So no row is overwritten that is
        still to be copied, and no beam moves without need.

        Args:
            rows: the row of each beam before.
            parents: for each new beam the index of the one that it continues.
        """
        free = [row for beam, row in enumerate(rows) if beam not in parents]
        moved, copies = list[int](), list[tuple[int, int]]()
        for parent in parents:
            row = rows[parent]
            if row in moved:
                copies.append((row, free.pop()))
                row = copies[-1][1]
            moved.append(row)
        self._spread.copy_rows(copies)
        return moved


def spread_over(
    session: Session, seed: Feeder, settings: GenerationSettings
) -> SpreadDecoding:
    """Return the source of beams or of several answers, in all rows of a session.

    Raises:
        KvcError: as `Feeder`.
    """
    if settings.num_beams > 1:
        return BeamDecoding(seed, session, settings)
    return SpreadDecoding(seed, session)


def most_tokens(answer: Answer, row: Row) -> int:
    """Return the greatest number of tokens of an answer to a prompt that has run.

    The last token of an answer does not run, so it needs no room.

    Raises:
        BadSetting: there is no limit.
    """
    limits = [answer.wanted, None if row.room is None else row.room + 1]
    known = [limit for limit in limits if limit is not None]
    if not known:
        expected = "a number: beams need a limit, and the session has no capacity"
        raise BadSetting(name="max_tokens", expected=expected, found=None)
    return min(known)
