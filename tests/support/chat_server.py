"""A stand-in for a server of chats: OpenAI's HTTP, with answers that a test wrote.

In: replies, in order. Out: the requests that came. It serves the page of `kvc serve`
with a strict content policy, and no model.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PAGE = Path(__file__).parents[2] / "serving/http/page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; "
POLICY += "img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
         ".svg": "image/svg+xml"}  # fmt: skip
USAGE = {"prompt_tokens": 12, "completion_tokens": 34, "total_tokens": 46}
METRICS = """# TYPE kvc_running gauge
kvc_running{model="a \"}"} 1
kvc_running{model="b"} 2
kvc_waiting{model="a"} 2
process_resident_memory_bytes 3.12e+08
"""


def event(told: object) -> bytes:
    """Return a server-sent event of JSON."""
    return f"data: {json.dumps(told, ensure_ascii=False)}\n\n".encode()


def delta(**parts: object) -> dict[str, Any]:
    """Return a chunk of an answer."""
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": None}]}


def stream(chunks: Sequence[object], finish: str = "stop") -> bytes:
    """Return a whole answer as it is sent, with its usage."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    told = [*chunks, last, {"choices": [], "usage": USAGE}]
    return b"".join(map(event, told)) + b"data: [DONE]\n\n"


def words(text: str, finish: str = "stop") -> bytes:
    """Return an answer, a word at a time."""
    pieces = text.split(" ")
    spaced = [piece + " " for piece in pieces[:-1]] + pieces[-1:]
    return stream([delta(content=piece) for piece in spaced], finish)


@dataclass(slots=True)
class Reply:
    """What the next request for an answer gets.

    Attributes:
        pieces: the body, as it is cut into writes.
        status: the status of HTTP.
        pause: the seconds between two pieces.
        hold: before the last piece the server waits for this; None: it does not.
    """

    pieces: Sequence[bytes]
    status: int = 200
    pause: float = 0.0
    hold: threading.Event | None = None


@dataclass(slots=True)
class Desk:
    """What a stand-in will answer, and what it was asked."""

    replies: list[Reply] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    aborted: threading.Event = field(default_factory=threading.Event)
    key: str = ""
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "smol"}])

    def next_reply(self) -> Reply:
        """Return what the next request gets; without a reply, a short answer."""
        return self.replies.pop(0) if self.replies else Reply([words("As you like.")])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    desk: Desk

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            path = "/page/index.html"
        if path == "/metrics":
            self._whole(METRICS.encode(), "text/plain")
        elif path == "/health":
            self._whole(b'{"status": "ok"}', "application/json")
        elif path == "/v1/models":
            self._models()
        elif (file := PAGE / Path(path).name).is_file():
            self._whole(file.read_bytes(), KINDS[file.suffix])
        else:
            self._refuse(404, "There is no such page.")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.desk.asked.append(json.loads(body))
        if not self._may():
            return
        reply = self.desk.next_reply()
        if reply.status != 200:
            self._whole(b"".join(reply.pieces), "application/json", reply.status)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in _paused(reply):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
            self.desk.aborted.set()

    def _models(self) -> None:
        if self._may():
            told = {"object": "list", "data": self.desk.models}
            self._whole(json.dumps(told).encode(), "application/json")

    def _may(self) -> bool:
        key = self.desk.key
        if not key or self.headers["Authorization"] == f"Bearer {key}":
            return True
        self._refuse(401, "A key is needed. Send it as `Authorization: Bearer KEY`.")
        return False

    def _refuse(self, status: int, sentence: str) -> None:
        told = {"error": {"message": sentence, "type": "invalid_request_error"}}
        self._whole(json.dumps(told).encode(), "application/json", status)

    def _whole(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)


def _paused(reply: Reply) -> Iterator[bytes]:
    for index, piece in enumerate(reply.pieces):
        if index and reply.pause:
            time.sleep(reply.pause)
        if reply.hold is not None and index == len(reply.pieces) - 1:
            reply.hold.wait(20)
        yield piece


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of browsers that leave."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class ChatServer:
    """A stand-in that listens on a free port of this machine."""

    def __init__(self) -> None:
        self.desk = Desk()
        handler = type("Handler", (_Handler,), {"desk": self.desk})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        serve = {"poll_interval": 0.05}
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs=serve, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
