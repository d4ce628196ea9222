"""Run a `Job`, and tell its answers: as one object, or as server-sent events.

In: a job. Out: an answer of HTTP. A client that leaves cancels its requests at once. An
error before the first token is an error of HTTP; later it is an event of the stream.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvc.schema.errors import KvcError, RequestTooSlow
from kvc.serving.http.responses import JsonAnswer, told_and_logged
from kvc.serving.http.service import NOTE, Service
from kvc.serving.http.updates import Mailbox
from kvc.serving.openai.chunks import DONE, event
from kvc.serving.openai.jobs import Job
from kvc.serving.scheduling import Request, Ticket, Update

Told = tuple[int, Update]

_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_LONG: Final = 4096  # tokens of a prompt
_GRACE: Final = 10.0  # seconds beyond the limit of an answer, to send what it is


Made = TypeVar("Made")


async def unless_left(
    request: HttpRequest, running: Coroutine[None, None, Made], seconds: float
) -> Made:
    """Return what a coroutine makes; cancel it if the client leaves, or it takes long.

    Args:
        request: the request, whose body has been read.
        running: makes the result.
        seconds: how long it may take.

    Raises:
        ClientDisconnect: the client has left.
        RequestTooSlow: it takes too long.
        KvcError: as the coroutine.
    """
    task = asyncio.create_task(running)
    left = asyncio.create_task(_leaving(request.receive))
    try:
        first = asyncio.FIRST_COMPLETED
        done, _ = await asyncio.wait((task, left), timeout=seconds, return_when=first)
        if not done:
            raise RequestTooSlow(seconds=seconds, what="no answer could be made")
        if task not in done:
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        left.cancel()


async def _leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class JobAnswer(Response):
    """The answer of HTTP to a job."""

    def __init__(self, service: Service, job: Job, began: float) -> None:
        """Answer a job.

        Args:
            service: the server.
            job: the job; nothing of it has run.
            began: when the request came, as of `time.perf_counter`.
        """
        super().__init__()
        self._service, self._job, self._began = service, job, began
        self._box: Mailbox[Told] = Mailbox(service.courier)
        self._open = set(range(len(job.requests)))
        self._tickets: list[Ticket] = []
        self._failed: KvcError | None = None
        self._begun = self._left = False  # the stream; the client, or all is told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the requests, and send what they make.

        Raises:
            KvcError: a request is refused or fails, before anything was sent.
            ClientDisconnect: the client has left.
        """
        async with self._running(receive, scope):
            if self._job.telling.stream:
                await self._stream(send)
                return
            while self._open:
                for index, update in await self._updates():
                    self._job.take(index, update)
        await JsonAnswer(self._job.whole())(scope, receive, send)

    @asynccontextmanager
    async def _running(self, receive: Receive, scope: Scope) -> AsyncIterator[None]:
        """Submit the requests; cancel them in the end, and if the client leaves."""
        watch = asyncio.create_task(self._watch(receive))
        seconds = self._service.limits.seconds + _GRACE
        try:
            if any(map(_takes_long, self._job.requests)):
                await self._service.preparing.run(self._submit)
            else:
                self._submit()
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:  # the client reads nothing
            raise ClientDisconnect from error
        finally:
            self._left = True
            scope[NOTE] = f" {self._job.found.id}: {self._job.usage.text}"
            for ticket in tuple(self._tickets):
                ticket.cancel()
                self._service.forget(ticket)
            watch.cancel()

    def _submit(self) -> None:
        """Hand the requests to the scheduler, from any thread."""
        model = self._job.found.text_model("answer")
        for index, request in enumerate(self._job.requests):
            ticket = model.submit(request, partial(self._listen, index))
            self._tickets.append(ticket)
            self._service.note(ticket)
            if self._left:  # set before the tickets are cancelled, so none is missed
                ticket.cancel()
                self._service.forget(ticket)

    def _listen(self, index: int, update: Update) -> None:
        """Take an update, in the thread of the scheduler."""
        self._box.deliver((index, update))

    async def _watch(self, receive: Receive) -> None:
        await _leaving(receive)
        self._box.leave()

    async def _updates(self) -> Sequence[Told]:
        """Return the next updates.

        Raises:
            KvcError: a request has failed, or was ended before its first token.
            ClientDisconnect: the client has left.
        """
        if self._failed is not None:
            raise self._failed
        found = await self._box.take()
        if not found:
            raise ClientDisconnect
        for number, (index, update) in enumerate(found):
            if update.error is not None:
                if not number:
                    raise update.error
                self._failed = update.error  # once the client has what came before
                return found[:number]
            self._note(index, update)
        return found

    def _note(self, index: int, update: Update) -> None:
        """Note what an update says of the request.

        Raises:
            KvcError: it was ended before its first token.
        """
        if update.tokens and self._began:
            seconds = time.perf_counter() - self._began
            model = self._job.found.model.name
            self._service.metrics.first_token(model, seconds)
            self._began = 0.0
        if update.ending == "cancelled" and self._began:
            self._service.check_open()
            seconds = self._service.limits.seconds
            raise RequestTooSlow(seconds=seconds, what="no token could be made")
        if update.ending is not None:
            self._open.discard(index)

    async def _stream(self, send: Send) -> None:
        """Send server-sent events; what came together is sent together."""
        try:
            first = await self._updates()
            await self._begin(send)
            await self._send(send, self._job.opening() + self._chunks(first))
            while self._open:
                if made := self._chunks(await self._updates()):
                    await self._send(send, made)
            await self._send(send, self._job.closing())
        except KvcError as error:
            if not self._begun:
                raise
            await send(_body(event(told_and_logged(error, self._service.hidden).body)))
        await send(_body(DONE, more=False))

    def _chunks(self, updates: Sequence[Told]) -> str:
        return "".join(self._job.chunk(index, update) for index, update in updates)

    async def _begin(self, send: Send) -> None:
        self._begun = True
        await send(
            {"type": "http.response.start", "status": 200, "headers": list(_HEADERS)}
        )

    async def _send(self, send: Send, text: str) -> None:
        if text:
            await send(_body(text.encode()))


def _takes_long(request: Request) -> bool:
    """Tell whether a scheduler may need long to check a request."""
    return request.settings.constraint is not None or len(request.prompt) > _LONG


def _body(content: bytes, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": content, "more_body": more}
