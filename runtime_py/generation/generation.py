"""`Generation` and `BatchGeneration`: iterate over tokens, or text, as they are made.

In: a source of tokens, empty answers, settings, all checked. Out: at each step one more
token of each unfinished answer, why answers ended, and the speed. A returned token runs
only when the next token is requested. So the last token of an answer never runs, and
`pending` returns it.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from kvc.runtime.generation.answer import Answer, EndReason, Spelling
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.log_probabilities import TokenLogprob
from kvc.runtime.generation.settings import GenerationSettings
from kvc.schema.errors import Busy, CacheOverflow

RowTokens = tuple[int | None, ...]
_Handed = TypeVar("_Handed")


class _Run(Iterator[_Handed]):
    """A generation in steps: each step gives every unfinished answer one token.

    A generation from a single prompt is a batch of one row.
    """

    def __init__(
        self, source: Decoding, answers: Sequence[Answer], settings: GenerationSettings
    ) -> None:
        """Begin with one empty answer for each row of the source of tokens."""
        self.settings = settings
        self.time_to_first_token: float | None = None
        self.prefill, self.decode = source.prefill, source.decode
        self._source, self._answers = source, tuple(answers)
        self._refill: Callable[[], _Run[_Handed] | None] | None = None
        self._steps, self._stepping = self._make_steps(), Lock()

    @property
    def drafted(self) -> int:
        """Return how many tokens of a draft the target has checked, of all rows."""
        return self._source.drafted

    @property
    def accepted(self) -> int:
        """Return how many of these the target accepted."""
        return self._source.accepted

    @property
    def acceptance(self) -> float:
        """Return the accepted share of the checked draft tokens, 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def close(self) -> None:
        """End the generation; a second call does nothing.

        Raises:
            Busy: another thread is requesting a token.
        """
        with self._alone():
            self._steps.close()

    def _step(self) -> RowTokens:
        with self._alone():
            return next(self._steps)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Allow a single thread in the `with` block; raise `Busy` in other threads."""
        if not self._stepping.acquire(blocking=False):
            raise Busy(method="a generation")
        try:
            yield
        finally:
            self._stepping.release()

    def _make_steps(self) -> Generator[RowTokens, None, None]:
        if not self._going():  # no token was requested
            return
        try:
            began = time.perf_counter()
            step = self._take(self._source.begin(self._answers))
            self.time_to_first_token = time.perf_counter() - began
            while step.count(None) < len(step):
                self._source.leave_pending(self._pending())
                yield step
                going = self._going()
                if not going:
                    return
                began = time.perf_counter()
                try:
                    step = self._take(self._source.follow(self._answers))
                except CacheOverflow:
                    if not self._goes_on():
                        for answer in going:
                            answer.reason = "length"
                        return
                    step = self._take(self._source.begin(self._answers))
                    continue
                self.decode.tokens += len(going)
                self.decode.seconds += time.perf_counter() - began
        finally:
            self._source.end()
            self._source.leave_pending(self._pending())

    def _goes_on(self) -> bool:
        """Make room in a full session; tell whether the answers can go on."""
        made = None if self._refill is None else self._refill()
        if made is None:
            return False
        for answer, anew in zip(self._answers, made._answers, strict=True):
            anew.go_on_from(answer)
        made.prefill.tokens += self.prefill.tokens
        made.prefill.seconds += self.prefill.seconds
        self.prefill = made.prefill
        self._source, self._answers = made._source, made._answers
        return True

    def _going(self) -> list[Answer]:
        return [answer for answer in self._answers if answer.reason is None]

    def _take(self, tokens: Sequence[int | None]) -> RowTokens:
        """Append each answer's sampled token; return the tokens for the caller."""
        return tuple(map(Answer.take, self._answers, tokens))

    def _pending(self) -> tuple[tuple[int, ...], ...]:
        return tuple([answer.pending for answer in self._answers])


class Generation(_Run[int]):
    """The continuation of a prompt: iterate for tokens, or over `text()` for text.

    Requesting the first token runs the prompt. Iteration may stop at any time; the
    session stays usable. When the generation has ended, was closed or failed, the
    session holds the prompt and the answer, except for the tokens in `pending`. To
    continue the text, pass `pending`, followed by new tokens, as the next prompt.

    With `num_beams`, the first token comes when the search has found the best answer.
    From then on row 0 of the session holds the prompt and the whole answer except for
    its last token, which is `pending`; the other rows hold what the search has left.

    Attributes:
        settings: the settings of sampling and of the end of the answer.
        prefill, decode: how many tokens the prompt has, and the time it took; and the
            same for the answer. The time of decode excludes the caller's time between
            two tokens. What is read again where a full cache is given room counts as
            prompt.
        time_to_first_token: seconds from the request of the first token to its return,
            None before that.
    """

    @property
    def tokens(self) -> list[int]:
        """Return the tokens of the answer that the caller has received so far."""
        return self._answers[0].tokens

    @property
    def reason(self) -> EndReason | None:
        """Return why the answer ended, None while the answer goes on.

        The reasons: "stop": the model generated a stop token, or the answer has its
        form and nothing can follow. "stop_string": the last
        token completes a stop string in the text. "length": the cache is full.
        "max_tokens": the limit of `max_tokens` or `max_length` is reached. An answer
        that was closed or failed has the reason None too.
        """
        return self._answers[0].reason

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Return the log probabilities of the tokens; empty if none were asked for.

        They are the model's own: before processors, a form, temperature, and any choice
        of candidates.
        """
        return _logprobs_of(self._answers[0])

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprob]:
        """Return those of the prompt's tokens after the first; empty if not asked for.

        They are complete when the first token has been returned.
        """
        return self._source.logprobs[0] if self._source.logprobs else ()

    @property
    def score(self) -> float | None:
        """Return the score of an answer that a search for beams has found, else None.

        The sum of the log probabilities of its tokens, after processors, divided by
        their number to the power of `length_penalty`.
        """
        return self._source.score

    @property
    def found(self) -> list[int]:
        """Return `tokens`; during a search for beams those of the best answer so far.

        So a search that is interrupted leaves something.
        """
        return list(self._answers[0].found)

    @property
    def is_complete(self) -> bool | None:
        """Tell whether the answer has the asked form; None if no form is asked for.

        An answer that ends at a limit of tokens may be incomplete.
        """
        return self._answers[0].is_complete

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the tokens of prompt and answer that are not in the session.

        Usually the result is one token: the last token of the answer, or the stop token
        that ended the answer. Several tokens wait there if a form has forced them. If
        the prompt was interrupted, the result includes the tokens of the prompt that
        have not run.
        """
        return self._pending()[0]

    def when_full(
        self, make_room: "Callable[[Generation], Generation | None] | None"
    ) -> None:
        """Set what happens where the cache is full, in place of the answer's end.

        Args:
            make_room: gets this generation, makes room in the session, and returns a
                new generation of a shorter prompt, or None if there is no room to be
                made. The answer so far goes on after that prompt. None: the answer
                ends.
        """
        self._refill = None if make_room is None else lambda: make_room(self)
        for answer in self._answers:
            answer.ends_when_full = make_room is None

    def __next__(self) -> int:
        (token,) = self._step()
        assert token is not None, "the generation ends with its only answer"
        return token

    def text(self) -> Iterator[str]:
        """Return the text in pieces, each of complete characters, none empty.

        The first piece begins with the text of tokens that the caller received by
        iteration. A stop string is left out. Text that may begin a stop string is
        returned only when later tokens show that it does not.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: the bundle's tokenizer cannot be
                used.
        """
        return self._spell(self._answers[0].spelling)

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens, {self.reason or 'goes on'}>"

    def _spell(self, spelling: Spelling) -> Iterator[str]:
        while True:
            spelling.spell(self.tokens)
            if piece := spelling.take():
                yield piece
            if next(self, None) is None:
                break
        if piece := spelling.finish():
            yield piece


class BatchGeneration(_Run[RowTokens]):
    """The continuations of several prompts, one in each row of a session.

    Iterate for steps, or call `texts()`. Each step is a tuple with the new token of
    each row, None for a row that has ended. Requesting the first step runs the prompts.
    Each row ends independently and does not change after its end; iteration ends when
    all rows have ended. The caller can stop iterating at any time; the session stays
    usable. To continue, pass for each row its `pending`, followed by new tokens, as the
    next prompt.

    Attributes:
        settings: the settings of sampling and of the end of an answer; row r samples
            with `seed` + r.
        prefill, decode: how many tokens the prompts of all rows have, and the time they
            took; and the same for the answers. The time of decode excludes the caller's
            time between two steps.
        time_to_first_token: seconds from the request of the first step to its return,
            None before that.
    """

    @property
    def tokens(self) -> tuple[list[int], ...]:
        """Return for each row the tokens that the caller has received so far."""
        return tuple(answer.tokens for answer in self._answers)

    @property
    def reason(self) -> tuple[EndReason | None, ...]:
        """Return for each row why its answer ended, as `Generation.reason` does."""
        return tuple(answer.reason for answer in self._answers)

    @property
    def logprobs(self) -> tuple[list[TokenLogprob], ...]:
        """Return for each row the log probabilities, as `Generation.logprobs` does."""
        return tuple(map(_logprobs_of, self._answers))

    @property
    def prompt_logprobs(self) -> Sequence[Sequence[TokenLogprob]]:
        """Return for each row those of its prompt, as for a `Generation`."""
        return self._source.logprobs

    @property
    def is_complete(self) -> tuple[bool | None, ...]:
        """Tell for each row whether its answer has the asked form."""
        return tuple(answer.is_complete for answer in self._answers)

    @property
    def pending(self) -> tuple[tuple[int, ...], ...]:
        """Return for each row the tokens of prompt and answer that have not run yet."""
        return self._pending()

    def __next__(self) -> RowTokens:
        return self._step()

    def texts(self) -> list[str]:
        """Generate the rest of each answer, and return the text of each row's answer.

        Stop strings are left out.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: the bundle's tokenizer cannot be
                used.
            ExecutionError: as `Session.call`.
        """
        for _ in self:
            pass
        return [answer.text() for answer in self._answers]

    def __repr__(self) -> str:
        rows = (f"{len(a.tokens)} {a.reason or 'goes on'}" for a in self._answers)
        return f"<BatchGeneration, tokens of each row: {', '.join(rows)}>"


def _logprobs_of(answer: Answer) -> list[TokenLogprob]:
    return answer.logprobs[: len(answer.tokens)]
