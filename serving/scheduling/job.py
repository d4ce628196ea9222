"""`Job`: a request that a scheduler has accepted, from its place in line to its end.

In: a request, a row that has read some of its prompt. Out: the tokens to run next, and
updates for the listener.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from traceback import format_tb
from typing import Final

import numpy as np

from kvc.runtime.generation.answer import Answer, Row
from kvc.runtime.generation.logits import Logits
from kvc.runtime.generation.matching import Matcher
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import KvcError
from kvc.serving.scheduling.requests import Ending, Listener, Request, Update
from kvc.serving.scheduling.rows import PLAIN, Chosen
from kvc.serving.scheduling.texts import Tokens

_LOG: Final = logging.getLogger(__name__)
_NOTHING: Final = Update()  # what is not told yet


class Job:
    """One request of a scheduler; its ticket.

    Attributes:
        request: the request.
        prompt: the tokens of its prompt, int64 [n].
        adapter: the adapter that reads them, and its scale.
        row: the row that runs it, None while it waits.
        cancelled: whether it is to end soon.
        reused: how many tokens of the prompt did not have to be read.
        reserved: the bytes that its row may take, until it ends.
        arrived: when it was accepted.
        passed: how many later requests have begun before it.
    """

    def __init__(
        self,
        request: Request,
        listener: Listener,
        matcher: Callable[[], Matcher | None],
        interval: float = 0.0,
    ) -> None:
        """Accept a request.

        Args:
            request: the request.
            listener: gets its updates.
            matcher: makes the matcher of its form, None if there is none.
            interval: the seconds between two updates, at least.
        """
        self.request, self._listener, self._matcher = request, listener, matcher
        self.prompt: Tokens = np.array(request.prompt, np.int64)
        name = request.adapter
        self.adapter: Chosen = PLAIN if name is None else (name, request.scale)
        self.row: int | None = None
        self.cancelled = False
        self.reused = self.reserved = self.passed = 0
        self.arrived = time.monotonic()
        seconds = request.seconds
        self._until = None if seconds is None else self.arrived + seconds
        self._answer: Answer | None = None
        self._told, self._is_told = 0, False
        self._interval, self._last = interval, 0.0
        self._spells = request.tokenizer is not None

    def cancel(self) -> None:
        """End the request soon; its row becomes free."""
        self.cancelled = True

    @property
    def is_over(self) -> bool:
        """Tell whether the request is to end before its answer does."""
        late = self._until is not None and time.monotonic() >= self._until
        return self.cancelled or late

    def begin(self, row: int, reused: int, capacity: int | None) -> None:
        """Begin in a row that holds the first `reused` tokens of the prompt.

        Raises:
            BadSetting: the prompt is longer than the setting `max_length` allows.
        """
        prompt = tuple(self.prompt.tolist())
        self._row = Row(reused, capacity)
        self._answer = Answer(
            prompt[reused:],
            self._row,
            self.request.settings,
            self._tokenizer,
            prompt[:reused],
            matcher=self._matcher(),
        )
        self.row, self.reused = row, reused

    def _tokenizer(self) -> Tokenizer:
        assert self.request.tokenizer is not None, "text was asked for"
        return self.request.tokenizer

    @property
    def answer(self) -> Answer:
        """Return the answer so far."""
        assert self._answer is not None, "the request has a row"
        return self._answer

    @property
    def held(self) -> int:
        """Return how many tokens the row holds."""
        return (self._row.start or 0) + self._row.fed

    @property
    def pending(self) -> Sequence[int]:
        """Return the tokens to run before the next one can be chosen."""
        return self.answer.pending

    @property
    def reads(self) -> bool:
        """Tell whether more than one token is to be run."""
        answer = self.answer
        return len(answer.prompt) + len(answer.chosen) - self._row.fed > 1

    @property
    def tokens(self) -> Tokens:
        """Return the tokens that the row holds, int64 [n]."""
        return self.answer.chooser.tokens[: self.held]

    @property
    def most_left(self) -> int | None:
        """Return how many more tokens the settings allow, None for no limit."""
        return self.answer.wanted

    def ran(self, count: int) -> None:
        """Note that the row has run tokens."""
        self._row.fed += count

    def choose(self, logits: Logits) -> Update:
        """Choose the next token, and all that must follow; return what to tell.

        Raises:
            UnusableLogits: the logits allow no token.
            BadSetting: a processor does not return logits.
            BadTokenizer: the tokenizer cannot spell the tokens.
        """
        answer = self.answer
        answer.take(answer.choose(logits))
        while (forced := answer.force()) is not None:
            answer.take(forced)
        return self._news(answer.reason)

    def end(self, ending: Ending, error: KvcError | None = None) -> None:
        """Tell the listener that the request has ended before its answer."""
        made = Update()
        if self._answer is not None:
            try:
                made = self._news(ending)
            except Exception:  # of the tokenizer; it may be what the request failed by
                made = Update(reused=self.reused)
        self.tell(replace(made, ending=ending, error=error))

    def tell(self, update: Update) -> None:
        """Give the listener an update; nothing follows the last one.

        The request of a listener that raises is cancelled.
        """
        if self._is_told or update is _NOTHING:
            return
        self._is_told = update.ending is not None
        try:
            self._listener(update)
        except Exception as error:  # not of kvc, and others must go on
            # Without its message, which may have what a client wrote.
            places = "".join(format_tb(error.__traceback__))
            kind = type(error).__name__
            _LOG.error("the listener of a request has failed: %s\n%s", kind, places)
            self.cancelled = True

    def _news(self, ending: Ending | None) -> Update:
        """Return an update with all that is new; raises as `choose`."""
        answer, told, text = self.answer, self._told, ""
        if self._interval:
            now = time.monotonic()
            if ending is None and told and now - self._last < self._interval:
                return _NOTHING
            self._last = now
        if self._spells:
            answer.spelling.spell(answer.tokens)
            text = answer.spelling.take()
            if ending is not None:
                text += answer.spelling.finish()
        self._told = len(answer.tokens)
        return Update(
            text,
            tuple(answer.tokens[told:]),
            tuple(answer.logprobs[told : len(answer.tokens)]),
            ending,
            None,
            self.reused,
        )
