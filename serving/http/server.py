"""`serve`: run a server until a signal, and let its answers finish.

In: a service, an address. Out: nothing. The first SIGINT or SIGTERM ends the listening
and lets running answers go on for a while, then ends them as cut off; the second ends
the server at once.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn

from kvc.schema.errors import BadSetting, reason_of
from kvc.schema.text import plural
from kvc.serving.http.app import make_app
from kvc.serving.http.protocol import protocol_for
from kvc.serving.http.service import Service

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BACKLOG: Final = 512
_LOG: Final = logging.getLogger(__name__)
_LAST: Final = 5.0  # seconds to send what ended answers are, before all is dropped


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Args:
        host: a name or an address.
        port: the port, 0 for any free one.

    Raises:
        BadSetting: the system refuses it.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError) as error:
        expected = f"an address that can be bound ({reason_of(error)}"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            expected += "; --port takes another one, 0 any that is free"
        expected += ")"
        raise BadSetting(
            name="host", expected=expected, found=f"{host}:{port}"
        ) from error
    return made


class Server(uvicorn.Server):
    """A server that ends as the module describes.

    Attributes:
        drain: for how many seconds answers may go on after the first signal.
    """

    def __init__(self, service: Service, drain: float) -> None:
        """Make a server, which does not run yet."""
        limits = service.limits
        config = uvicorn.Config(
            make_app(service),
            http=protocol_for(limits),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=int(max(1, limits.idle)),
            backlog=_BACKLOG,
            loop="asyncio",
        )
        super().__init__(config)
        self._service, self.drain = service, drain
        self._timers: list[asyncio.TimerHandle] = []

    def stop(self) -> None:
        """Begin to end; in the event loop."""
        if self.should_exit:
            return
        self.should_exit = True
        self._service.drain()
        if running := self._service.running:
            _LOG.info(
                "ending, with at most %g s for %s; a second signal ends it at once",
                self.drain,
                plural(running, "answer"),
            )
        loop = asyncio.get_running_loop()
        self._timers += [
            loop.call_later(self.drain, self._service.end_answers),
            loop.call_later(self.drain + _LAST, self._force),
        ]

    def _force(self) -> None:
        self.force_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals stop the server, in the main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            if self.should_exit:  # a call of a model cannot be interrupted
                os._exit(128 + number)
            loop.call_soon_threadsafe(self.stop)

        before = {one: signal.signal(one, stop) for one in _SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    async def run_on(
        self, listener: socket.socket, started: Callable[[], None] = lambda: None
    ) -> None:
        """Serve on a socket until the server is stopped.

        Args:
            listener: a bound socket, which is closed in the end.
            started: called once connections are accepted.
        """
        self._service.start()
        task = asyncio.create_task(self.serve(sockets=[listener]))
        while not self.started and not task.done():
            await asyncio.sleep(0.01)
        if self.started:
            started()
        try:
            await task
        finally:
            for timer in self._timers:
                timer.cancel()
            for task_left in tuple(self.server_state.tasks):
                task_left.cancel()
            self._service.close()
