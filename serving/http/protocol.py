"""`Protocol`: a connection that may not wait for ever, and not be one too many.

In: bytes of a client. Out: requests for the app, by uvicorn's protocol over h11. A
connection must have sent the head of a request within a time from its beginning, or
from the first byte after an earlier request. A client that reads nothing for such a
time is dropped, so that what waits for it does not stay.
"""

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvc.serving.http.limits import HttpLimits
from kvc.serving.http.responses import busy_answer

_HTTP_1: Final = b"HTTP/1.1 503 Service Unavailable\r\n"


def protocol_for(limits: HttpLimits) -> type[asyncio.Protocol]:
    """Return the class of connections with some limits."""
    return type("LimitedProtocol", (Protocol,), {"limits": limits})


class Protocol(H11Protocol):
    """A connection; a subclass has its limits."""

    limits: HttpLimits
    _timer: asyncio.TimerHandle | None = None
    _refused = False  # one too many, of which uvicorn knows nothing
    _unread_timer: asyncio.TimerHandle | None = None
    _unread: int | None = None  # bytes that waited when it was last looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin a connection, or refuse it."""
        if len(self.connections) >= self.limits.connections:
            self.transport, self._refused = transport, True
            transport.write(_refusal())
            transport.close()
            return
        # Writing pauses as soon as anything waits, so that the timer sees all of it.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_timer()
        if not self._refused:
            self._stop_unread_timer()
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for the client, which does not read as fast as it is told."""
        if not self._refused:
            super().pause_writing()
            self._unread = None
            self._start_unread_timer()

    def resume_writing(self) -> None:
        """Go on: the client has read all."""
        if not self._refused:
            self._stop_unread_timer()
            super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._refused:
            return
        super().data_received(data)
        theirs, ours = self.conn.their_state, self.conn.our_state
        begun = theirs is h11.IDLE and bool(self.conn.trailing_data[0])
        unread = theirs is h11.SEND_BODY and ours is h11.DONE  # it was refused
        if not begun and not unread:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limits.reading, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_unread_timer(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = self.limits.reading
        self._unread_timer = loop.call_later(seconds, self._check_reading)

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _check_reading(self) -> None:
        """Drop the connection if the client has read nothing since the last look.

        A transport that is only closed would wait for the client for ever.
        """
        waiting = self.transport.get_write_buffer_size()
        if self._unread is not None and waiting >= self._unread:
            self.transport.abort()
            return
        self._unread = waiting
        self._start_unread_timer()

    def _expire(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


def _refusal() -> bytes:
    body = busy_answer().body
    head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return (
        _HTTP_1 + f"{head}Retry-After: 1\r\nConnection: close\r\n\r\n".encode() + body
    )
