"""`Scheduler`: answers many requests at once, in a thread of its own.

In: requests, from any thread. Out: updates for their listeners. The thread owns all
sessions; the rows of one session decode together (`turns.py`), prompts that begin as
earlier texts are not read again (`admission.py`).
"""

import threading
import time
from collections import deque
from dataclasses import replace

import numpy as np

from kvc.runtime import Program
from kvc.runtime.generation.matching import matchers_of
from kvc.runtime.sessions.methods import find_roles
from kvc.schema.closing import Closing
from kvc.schema.errors import (
    BadSetting,
    Closed,
    KvcError,
    Overloaded,
    PromptTooLong,
)
from kvc.serving.scheduling.job import Job
from kvc.serving.scheduling.limits import Limits
from kvc.serving.scheduling.requests import Ending, Listener, Request, Ticket
from kvc.serving.scheduling.status import Status
from kvc.serving.scheduling.turns import Turns, as_told


class Scheduler(Closing):
    """Answers requests with one loaded program.

    Attributes:
        program: the program, which stays open when the scheduler is closed.
        capacity: how many tokens prompt and answer of a request can have, None for no
            limit.
        together: whether all answers are made in the same calls; if not, the weights
            are read for each answer.
    """

    def __init__(self, program: Program, limits: Limits | None = None) -> None:
        """Open the rows, and start the thread.

        Raises:
            UnknownName: the program cannot generate.
            BadSetting: the limits allow no row, or more than the program does.
            OutOfMemory: the system provides no address space.
        """
        self.program, self._limits = program, limits or Limits()
        self._token_input = program.token_input(find_roles(program, "prefill")[0])
        self._turns = Turns(program, self._limits)
        self.capacity = self._turns.capacity
        self.together = self._turns.rows.together
        self._arrived: deque[Job] = deque()
        self._refused, self._began = 0, time.monotonic()
        self._changed = threading.Condition()
        self._closing = False
        self._until = 0.0  # when a scheduler that closes ends what still runs
        self._thread = threading.Thread(target=self._run, name="kvc", daemon=True)
        self._thread.start()

    def submit(self, request: Request, listener: Listener) -> Ticket:
        """Accept a request.

        Raises:
            Overloaded: too many requests wait.
            Closed: the scheduler is closing.
            InputMismatch: a token of the prompt is not in the vocabulary.
            PromptTooLong: no row has room for the prompt and a token.
            BadSetting: the prompt is empty, or a setting is impossible.
            UnknownName: the adapter is not loaded.
            MissingPackage: a form is asked for, and llguidance is not installed.
        """
        if request.adapter is None:
            request = self._with_default(request)
        self._check(request)
        vocabulary = self._turns.rows.vocabulary
        matcher = matchers_of(self.program, request.settings, vocabulary)
        job = Job(request, listener, matcher, self._limits.interval)
        with self._changed:
            if self._closing or not self._thread.is_alive():  # after a fork it is not
                raise Closed(kind="scheduler")
            waiting = len(self._arrived) + len(self._turns.waiting)
            if waiting >= self._room_of(request.client):
                self._refused += 1
                raise Overloaded(waiting=waiting, seconds=self._seconds_of(waiting))
            self._arrived.append(job)
            self._changed.notify()
        return job

    def _room_of(self, client: str) -> int:
        """Return how many requests may wait when a client has one more."""
        most = self._limits.queue
        own = any(job.request.client == client for job in self._arrived)
        waits = bool(client) and (own or self._turns.waiting.has(client))
        return most - most // 8 if waits else most

    def _with_default(self, request: Request) -> Request:
        """Return a request with the adapter that sessions have which ask for none."""
        adapter, scale = self.program.adapters.default
        if adapter is None:
            return request
        return replace(request, adapter=adapter.name, scale=scale)

    def _check(self, request: Request) -> None:
        """Check a request before anything runs; raises as `submit`."""
        count = len(request.prompt)
        if not count:
            raise BadSetting(name="prompt", expected="at least one token", found="none")
        if self._token_input is not None:
            self._token_input.check(np.array(request.prompt, np.int64))
        most = self.capacity
        if most is not None and count >= most:
            raise PromptTooLong(
                row=0, start=0, count=count, capacity=most, room=most - 1
            )
        settings = request.settings
        length = None if settings.max_tokens is not None else settings.max_length
        if length is not None and length <= count:
            expected = f"more than {count}, the tokens of the prompt"
            raise BadSetting(name="max_length", expected=expected, found=length)
        if settings.stop_strings and request.tokenizer is None:
            expected = "none, for requests without a tokenizer"
            raise BadSetting(name="stop_strings", expected=expected, found="some")
        if request.adapter is not None:
            self.program.adapters.choose(request.adapter, request.scale)

    def _seconds_of(self, waiting: int) -> float:
        """Return after how long one of the waiting requests may have begun."""
        passed, counts = time.monotonic() - self._began, self._turns.counts
        done = counts["finished"] + counts["failed"] + counts["cancelled"]
        return min(max(passed / done if done else 1.0, 1.0), 60.0)

    @property
    def status(self) -> Status:
        """Return what the scheduler is doing now."""
        found = self._turns.status
        waiting = found.waiting + len(self._arrived)
        return replace(found, waiting=waiting, refused=self._refused)

    @property
    def is_alive(self) -> bool:
        """Tell whether the thread runs; it ends when the scheduler is closed."""
        return self._thread.is_alive()

    def foretold_nbytes(self, tokens: int) -> int:
        """Return the bytes of one row's caches for so many tokens.

        Raises:
            Closed: the scheduler or its program has been closed.
        """
        return self._turns.memory.nbytes(tokens)

    def close(self, seconds: float = 0.0) -> None:
        """Accept no more requests; end what still runs after some seconds.

        It returns when all listeners have had their last update. A second call may
        shorten the time.
        """
        with self._changed:
            until = time.monotonic() + seconds
            self._until = min(self._until, until) if self._closing else until
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        ending: Ending = "cancelled"
        failure: KvcError | None = None
        try:
            self._serve()
        except Exception as error:  # nothing can run any more: the program was closed
            ending, failure = "failed", as_told(error)
        with self._changed:
            self._closing = True
            self._add_arrived()
        try:
            self._turns.end_all(ending, failure)
        finally:
            self._turns.close()

    def _serve(self) -> None:
        """Work until the scheduler closes.

        Raises:
            Closed: the program has been closed.
        """
        turns, prepares = self._turns, True
        while self._take(wait=not prepares):
            try:
                prepares = turns.prepare() if turns.is_idle else prepares
                turns.turn()
            except Exception as error:  # others must be able to go on
                turns.recover(error)

    def _add_arrived(self) -> None:
        while self._arrived:
            self._turns.waiting.add(self._arrived.popleft())

    def _take(self, wait: bool) -> bool:
        """Take what has arrived, perhaps wait for it; False ends the thread."""
        with self._changed:
            while True:
                self._add_arrived()
                idle = self._turns.is_idle
                if self._closing and (idle or time.monotonic() >= self._until):
                    return False
                if not (idle and wait):
                    return True
                self._changed.wait()
