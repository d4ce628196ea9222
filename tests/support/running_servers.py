"""Servers on a free port of this machine, in a thread of the test."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai

from kvc.runtime import load
from kvc.serving.http.limits import HttpLimits
from kvc.serving.http.server import Server, listening
from kvc.serving.http.service import Access, Service
from kvc.serving.models.catalog import Catalog
from kvc.serving.models.opening import open_model
from kvc.serving.scheduling import Limits

USUAL, ANYBODY, ROOMY = HttpLimits(), Access(), Limits()


@dataclass
class Answered:
    """An answer of HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """Return the parsed body."""
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Running:
    """A server that runs.

    Attributes:
        port: its port.
        service: what its requests share.
        server: the server.
        loop: its event loop.
    """

    port: int
    service: Service
    server: Server
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    clients: list[openai.OpenAI] = field(default_factory=list)

    def client(self, key: str = "none", **settings: object) -> openai.OpenAI:
        """Return a client of the package openai."""
        url = f"http://127.0.0.1:{self.port}/v1"
        made = openai.OpenAI(base_url=url, api_key=key, max_retries=0, **settings)
        self.clients.append(made)
        return made

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> "Answered":
        """Return the answer to a request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, body, named)
            found = connection.getresponse()
            told = {name.lower(): value for name, value in found.getheaders()}
            return Answered(found.status, told, found.read())

    def post(self, path: str, body: bytes, **headers: str) -> "Answered":
        """Return the answer to a body of JSON."""
        return self.ask("POST", path, body, content_type="application/json", **headers)

    def connect(self) -> socket.socket:
        """Return a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def stop(self) -> None:
        """Begin to end the server."""
        self.loop.call_soon_threadsafe(self.server.stop)


@contextmanager
def running(
    bundles: dict[str, Path],
    limits: HttpLimits = USUAL,
    access: Access = ANYBODY,
    adapters: Sequence[tuple[str, Path]] = (),
    scheduling: Limits = ROOMY,
    drain: float = 0.0,
    mode: str = "map",
) -> Iterator[Running]:
    """Serve bundles by name; adapters are of the first of them."""
    models = []
    for number, (name, path) in enumerate(bundles.items()):
        program = load(path, mode)
        mine = adapters if number == 0 else ()
        for adapter, file in mine:
            program.adapters.load(file, adapter)
        scales = {adapter: 1.0 for adapter, _ in mine}
        models.append(open_model(name, program, scheduling, scales))
    service = Service(Catalog(models), limits, access)
    listener = listening("127.0.0.1", 0)
    server = Server(service, drain)
    loop, started = asyncio.new_event_loop(), threading.Event()

    def run() -> None:
        loop.run_until_complete(server.run_on(listener, started.set))
        loop.close()

    thread = threading.Thread(target=run)
    port = listener.getsockname()[1]
    thread.start()
    try:
        assert started.wait(20)
        made = Running(port, service, server, loop, thread)
        yield made
        for client in made.clients:
            client.close()
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(server.stop)
        thread.join()
        service.catalog.close()


def limits(**changes: float) -> HttpLimits:
    """Return limits with some changes."""
    return replace(HttpLimits(), **changes)


def wait_for(found: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)
