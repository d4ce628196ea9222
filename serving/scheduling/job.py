"""`Job`: a request that a scheduler has accepted, from its place in line to its end.

In: a request, a row that has read some of its prompt. Out: the tokens to run next, and
updates for the listener.
"""

import time
from collections.abc import Callable, Sequence

from kvc.runtime.generation.answer import Answer, Row
from kvc.runtime.generation.logits import Logits
from kvc.runtime.generation.matching import Matcher
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import KvcError
from kvc.serving.scheduling.requests import Ending, Listener, Request, Update


class Job:
    """One request of a scheduler; its ticket.

    Attributes:
        request: the request.
        row: the row that runs it, None while it waits.
        cancelled: whether it is to end soon.
        reused: how many tokens of the prompt did not have to be read.
        reserved: the bytes that its row may take, until it ends.
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
        self.row: int | None = None
        self.cancelled = False
        self.reused = self.reserved = 0
        self._until = (
            None if request.seconds is None else time.monotonic() + request.seconds
        )
        self._answer: Answer | None = None
        self._told, self._interval, self._last = 0, interval, 0.0
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
        prompt = tuple(self.request.prompt)
        self.row, self.reused = row, reused
        self._row = Row(reused, capacity)
        self._answer = Answer(
            prompt[reused:],
            self._row,
            self.request.settings,
            self._tokenizer,
            prompt[:reused],
            matcher=self._matcher(),
        )

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
        return len(self.answer.pending) > 1

    @property
    def tokens(self) -> Sequence[int]:
        """Return the tokens that the row holds."""
        found: Sequence[int] = self.answer.chooser.tokens.tolist()
        return found[: self.held]

    @property
    def most_left(self) -> int | None:
        """Return how many more tokens the settings allow, None for no limit."""
        return self.answer.wanted

    def ran(self, count: int) -> None:
        """Note that the row has run tokens."""
        self._row.fed += count

    def choose(self, logits: Logits) -> bool:
        """Choose the next token, and all that must follow; tell whether it ends here.

        Raises:
            UnusableLogits: the logits allow no token.
            BadSetting: a processor does not return logits.
        """
        answer = self.answer
        answer.take(answer.choose(logits))
        while (forced := answer.force()) is not None:
            answer.take(forced)
        self._tell(answer.reason)
        return answer.reason is not None

    def end(self, ending: Ending, error: KvcError | None = None) -> None:
        """Tell the listener that the request has ended before its answer."""
        if self._answer is None:
            self._listener(Update(ending=ending, error=error))
        else:
            self._tell(ending, error)

    def _tell(self, ending: Ending | None, error: KvcError | None = None) -> None:
        answer, told, text = self.answer, self._told, ""
        if self._interval:
            now = time.monotonic()
            if ending is None and told and now - self._last < self._interval:
                return
            self._last = now
        if self._spells:
            answer.spelling.spell(answer.tokens)
            text = answer.spelling.take()
            if ending is not None:
                text += answer.spelling.finish()
        self._told = len(answer.tokens)
        self._listener(
            Update(
                text,
                tuple(answer.tokens[told:]),
                tuple(answer.logprobs[told : len(answer.tokens)]),
                ending,
                error,
                self.reused,
            )
        )
