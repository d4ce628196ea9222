"""`Worker`: an actor with a bundle and a scheduler, which answers rows.

In: rows, a few at a time. Out: outcomes of rows that have ended, also of those that
were given before. One call does both, so that the scheduler always has rows waiting.
"""

import time
from collections.abc import Sequence
from typing import Final

from kvc.ray.config import BundleConfig
from kvc.schema.frozen import frozen
from kvc.serving.batch import Answering, Outcome, Row

_GATHER: Final = 1.0  # seconds in which outcomes of one call may end


@frozen
class Ready:
    """What a worker tells when it has loaded its bundle.

    Attributes:
        digest: the digest of the bundle.
        room: how many rows it takes at a time.
        node: the id of its node.
    """

    digest: str
    room: int
    node: str


class Worker:
    """Answers rows; Ray makes an actor of it."""

    def __init__(self, config: BundleConfig) -> None:
        """Remember the settings; `ready` loads the bundle."""
        self._config = config

    def ready(self) -> Ready:
        """Load the bundle; return what the driver checks before it gives rows.

        Raises:
            KvcError: as `BundleConfig.opened` and `Answering`.
        """
        import ray

        program, prompts = self._config.opened()
        self._answering = Answering(program, prompts, self._config.limits)
        node = ray.get_runtime_context().get_node_id()
        return Ready(program.digest, self._answering.room, node)

    def exchange(self, rows: Sequence[Row]) -> Sequence[Outcome]:
        """Take rows; return outcomes, of which there may be none yet.

        So that a driver of many actors has few calls, outcomes are gathered for a
        second, while other rows run and wait.
        """
        found, until = list[Outcome](), time.monotonic() + _GATHER
        for row in rows:
            self._answering.start(row)
        enough = self._answering.running // 2  # the rest waits while these are told
        while self._answering.running and len(found) <= enough:
            left = until - time.monotonic()
            if left <= 0:
                break
            found += self._answering.take(left)
        found += self._answering.take(0)
        return found
