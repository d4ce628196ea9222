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

_WAIT: Final = 1.0  # seconds for the first outcome
_GATHER: Final = 0.01  # seconds for outcomes that end soon after it


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
        room = 2 * self._answering.room  # the second half waits on this side
        node = ray.get_runtime_context().get_node_id()
        return Ready(program.digest, room, node)

    def exchange(self, rows: Sequence[Row]) -> Sequence[Outcome]:
        """Take rows; return outcomes, of which there may be none yet.

        Rows that the scheduler has no room for wait until others have ended.
        """
        found = list[Outcome]()
        for row in rows:
            while self._answering.room < 1:
                found += self._answering.take(None)
            self._answering.start(row)
        if not found and self._answering.running:
            found += self._answering.take(_WAIT)
            time.sleep(_GATHER if found else 0.0)
        found += self._answering.take(0)
        return found
