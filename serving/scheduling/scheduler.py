"""`Scheduler`: one thread that answers requests."""

import threading
from collections import deque
from dataclasses import replace

from kvc.runtime import Program
from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.matching import matchers_of
from kvc.schema.closing import Closing
from kvc.schema.errors import KvcError
from kvc.schema.errors import Closed, Overloaded
from kvc.serving.scheduling.limits import Limits
from kvc.serving.scheduling.requests import Ending, Listener, Request, Update
from kvc.serving.scheduling.status import Status


class _Ticket:
    def __init__(self, request: Request, listener: Listener) -> None:
        self.request, self.listener = request, listener
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Scheduler(Closing):
    """Answers requests one after the other (to be replaced)."""

    def __init__(self, program: Program, limits: Limits = Limits()) -> None:
        self.program, self._limits = program, limits
        self._queue: deque[_Ticket] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._status = Status(rows=1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, request: Request, listener: Listener) -> _Ticket:
        """Accept a request.

        Raises:
            Overloaded: too many requests wait.
            Closed: the scheduler is closing.
            InputMismatch: a token of the prompt is not in the vocabulary.
            PromptTooLong: no row has room for the prompt.
            BadSetting: the adapter is not loaded, or a setting is impossible.
        """
        ticket = _Ticket(request, listener)
        with self._ready:
            if self._closed:
                raise Closed(kind="scheduler")
            if len(self._queue) >= self._limits.queue:
                raise Overloaded(waiting=len(self._queue), seconds=1.0)
            self._queue.append(ticket)
            self._ready.notify()
        return ticket

    @property
    def status(self) -> Status:
        """Return what the scheduler is doing now."""
        return replace(self._status, waiting=len(self._queue))

    def close(self, seconds: float = 0.0) -> None:
        """Accept no more requests; let those that run go on for some seconds."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._closed:
                    self._ready.wait()
                if not self._queue:
                    return
                ticket = self._queue.popleft()
            try:
                self._answer(ticket)
            except KvcError as error:
                ticket.listener(Update(ending="failed", error=error))

    def _answer(self, ticket: _Ticket) -> None:
        request, told = ticket.request, 0
        with self.program.session(
            self._limits.capacity, adapter=request.adapter, scale=request.scale if request.adapter else None
        ) as session:
            feeder = Feeder(session)
            feeder.check_prompts([request.prompt])
            source = Decoding(feeder)

            def tokenizer() -> object:
                return request.tokenizer

            matcher = matchers_of(session, request.settings, feeder.vocabulary)()
            answer = Answer(
                tuple(request.prompt), feeder.rows[0], request.settings, tokenizer,
                matcher=matcher,
            )
            answer.take(source.begin([answer])[0])
            while True:
                ending: Ending | None = answer.reason
                if ticket.cancelled and ending is None:
                    ending = "cancelled"
                text = ""
                if request.tokenizer is not None:
                    answer.spelling.spell(answer.tokens)
                    text = answer.spelling.take()
                    if ending is not None:
                        text += answer.spelling.finish()
                ticket.listener(
                    Update(
                        text, tuple(answer.tokens[told:]),
                        tuple(answer.logprobs[told : len(answer.tokens)]), ending,
                    )
                )
                told = len(answer.tokens)
                if ending is not None:
                    return
                answer.take(source.follow([answer])[0])
