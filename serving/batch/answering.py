"""`Answering`: rows go into a scheduler, and come out as outcomes when they end.

In: rows. Out: their outcomes, in the order in which they end. The queue of the
scheduler is kept full, so that it never waits for rows, but bounded.
"""

import queue
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kvc.runtime import Program
from kvc.runtime.generation.log_probabilities import TokenLogprob
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.closing import Closing
from kvc.schema.errors import Closed, KvcError, Overloaded
from kvc.serving.batch.outcomes import Answered, Outcome, failure_of, outcome_of
from kvc.serving.batch.prompts import Prompts
from kvc.serving.batch.rows import Row
from kvc.serving.scheduling import Limits, Request, Scheduler, Update

_AHEAD: Final = 4  # waiting rows for each that runs
_LEAST: Final = 16
_PAUSE: Final = 0.05  # seconds, where a scheduler takes no more


class Answerer(Protocol):
    """What answers the rows of a batch.

    Attributes:
        running: how many rows it has taken and not returned.
    """

    running: int

    @property
    def room(self) -> int:
        """Return how many more rows it takes now."""

    def start(self, row: Row) -> None:
        """Take a row."""

    def take(self, seconds: float | None) -> Sequence[Outcome]:
        """Return outcomes of rows that have ended; wait for one at most so long."""


class Answering(Closing):
    """Answers rows by a scheduler of this process.

    Attributes:
        running: how many rows it has taken and not returned.
        scheduler: the scheduler.
    """

    def __init__(self, program: Program, prompts: Prompts, limits: Limits) -> None:
        """Start a scheduler.

        Args:
            program: the program that answers.
            prompts: makes requests of rows.
            limits: the limits of the scheduler.

        Raises:
            BadSetting: the bundle has no room for rows of that capacity.
            KvcError: as `Scheduler`.
        """
        program.session(limits.capacity).close()  # or each row would tell it
        self.running = 0
        self._prompts = prompts
        self.scheduler = Scheduler(program, limits)
        wanted = max(_LEAST, (_AHEAD + 1) * self.scheduler.status.rows)
        self._most = max(1, min(limits.queue, wanted))
        self._ended = queue.SimpleQueue[Outcome]()

    @property
    def room(self) -> int:
        """Return how many more rows it takes now."""
        return self._most - self.running

    def start(self, row: Row) -> None:
        """Take a row; one that is no request has failed at once."""
        self.running += 1
        while not self.offer(row, self._ended.put):
            time.sleep(_PAUSE)

    def offer(self, row: Row, tell: Callable[[Outcome], None]) -> bool:
        """Take a row, unless too many wait; return whether it was taken.

        Args:
            row: the row.
            tell: is told the outcome, in the scheduler's thread or in this one.

        Raises:
            Closed: the scheduler is closing.
        """
        try:
            request = self._prompts.request(row)
            self.scheduler.submit(request, _Collector(row, request, tell))
        except Closed:
            raise
        except Overloaded:
            return False
        except KvcError as error:
            tell(failure_of(row, error))
        return True

    def take(self, seconds: float | None) -> Sequence[Outcome]:
        """Return outcomes of rows that have ended; wait for one at most so long.

        Args:
            seconds: how long to wait for the first; None for as long as it takes.
        """
        found = list[Outcome]()
        try:
            if self.running:
                found.append(self._ended.get(seconds != 0, seconds))
            while len(found) < self.running:
                found.append(self._ended.get_nowait())
        except queue.Empty:
            pass
        self.running -= len(found)
        return found

    def close(self) -> None:
        """Cancel what runs, and end the scheduler."""
        self.scheduler.close()


class _Collector:
    """The listener of one row: gathers its answer."""

    def __init__(
        self, row: Row, request: Request, tell: Callable[[Outcome], None]
    ) -> None:
        self._row, self._request, self._tell = row, request, tell
        self._texts, self._tokens = list[str](), list[int]()
        self._logprobs, self._reused = list[TokenLogprob](), 0

    def __call__(self, update: Update) -> None:
        self._texts.append(update.text)
        self._tokens += update.tokens
        self._logprobs += update.logprobs
        self._reused = max(self._reused, update.reused)
        if update.error is not None:
            self._tell(failure_of(self._row, update.error))
        elif update.ending is not None:
            self._tell(self._outcome(update))

    def _outcome(self, update: Update) -> Outcome:
        assert update.ending is not None
        request = self._request
        answer = Answered(
            text=self._text(request.tokenizer),
            tokens=self._tokens,
            ending=update.ending,
            prompt=request.prompt,
            reused=self._reused,
            logprobs=None if request.settings.logprobs is None else self._logprobs,
        )
        return outcome_of(self._row, answer, request.tokenizer)

    def _text(self, tokenizer: Tokenizer | None) -> str | None:
        """Return the text of the answer, None without a tokenizer.

        Some tokenizers write the first token after others with a space before it, which
        an answer of a chat does not begin with.
        """
        if tokenizer is None:
            return None
        text = "".join(self._texts)
        if self._row.messages is None or not text.startswith(" "):
            return text
        stream = tokenizer.stream()
        alone = "".join(map(stream.push, self._tokens)) + stream.finish()
        return text if alone.startswith(" ") else text[1:]
