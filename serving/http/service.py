"""`Service`: what all requests of a server share.

It lives in one event loop: the models, the limits, the threads beside the loop, the
numbers, and the answers that run, so that they can be ended when the server ends.
"""

import asyncio
import time
from dataclasses import field
from pathlib import Path
from typing import Final

from kvc.schema.errors import Closed
from kvc.schema.frozen import frozen
from kvc.serving.http.limits import HttpLimits
from kvc.serving.http.metrics import Metrics
from kvc.serving.http.page_files import read_page
from kvc.serving.http.updates import Courier
from kvc.serving.http.workers import Workers
from kvc.serving.models.catalog import Catalog
from kvc.serving.models.text_model import TextModel
from kvc.serving.scheduling import Ticket

NOTE: Final = "kvc.note"  # in a scope: more for the log
ENDPOINT: Final = "kvc.endpoint"  # in a scope: the path of the endpoint
_PREPARING = 2  # threads that render templates and encode texts


@frozen
class Access:
    """Who may use a server.

    Attributes:
        keys: the keys that requests must have one of; empty: no key is needed.
        hosts: the values of the header Host that are served, without ports, in lower
            case; empty: all.
        origins: the web pages that may use the server, as https://example.org; "*" for
            all.
    """

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()


_ANYBODY: Final = Access()


class Service:
    """The shared part of a server.

    Attributes:
        catalog: the models.
        limits: the limits.
        access: who may use the server.
        metrics: the numbers.
        preparing: the threads that make requests for schedulers.
        hidden: paths that no answer tells.
        others: the thread that runs embeddings and transcriptions.
        page: the files of the server's page.
        created: when the server began, in seconds since 1970.
        courier: brings updates of schedulers.
    """

    courier: Courier

    def __init__(
        self, catalog: Catalog, limits: HttpLimits, access: Access = _ANYBODY
    ) -> None:
        """Share some models; `start` must run in the event loop before requests."""
        self.catalog, self.limits, self.access = catalog, limits, access
        self.metrics = Metrics(catalog)
        self.preparing = Workers("kvc-prepare", _PREPARING, limits.queue)
        self.others = Workers("kvc-others", 1, limits.queue)
        self.hidden = tuple(
            path
            for model in catalog.models.values()
            for path in dict.fromkeys(
                (model.program.path, str(Path(model.program.path).resolve()))
            )
        )
        self._running: set[Ticket] = set()
        self._draining = self._ended = False
        self.page = read_page()
        self.created = int(time.time())

    def start(self) -> None:
        """Begin, in the event loop that runs the requests."""
        self.courier = Courier(asyncio.get_running_loop())

    def check_open(self) -> None:
        """Check that the server accepts requests.

        Raises:
            Closed: it is ending.
        """
        if self._draining:
            raise Closed(kind="server")

    def check_alive(self) -> None:
        """Check that requests are answered.

        Raises:
            Closed: the server is ending, or the thread of a model has ended.
        """
        self.check_open()
        for model in self.catalog.models.values():
            if isinstance(model, TextModel) and not model.scheduler.is_alive:
                raise Closed(kind=f"scheduler of {model.name}")

    def note(self, ticket: Ticket) -> None:
        """Remember an answer that runs; may be called from any thread."""
        self._running.add(ticket)
        if self._ended:
            ticket.cancel()

    def forget(self, ticket: Ticket) -> None:
        """Forget an answer that has ended."""
        self._running.discard(ticket)

    def drain(self) -> None:
        """Accept no more requests."""
        self._draining = True

    @property
    def running(self) -> int:
        """Return how many answers run or wait."""
        return len(self._running)

    def end_answers(self) -> None:
        """End the answers that run; they are told as cut off."""
        self._ended = True
        for ticket in tuple(self._running):
            ticket.cancel()

    @property
    def is_busy(self) -> bool:
        """Tell whether a thread beside the event loop still runs something."""
        return self.preparing.is_busy or self.others.is_busy

    def close(self) -> None:
        """End the threads beside the event loop."""
        self.preparing.close()
        self.others.close()
