"""`RayAnswering`: the rows of a batch are answered by actors of a cluster.

In: rows. Out: their outcomes, in the order in which they end. The journal stays with
the caller. Rows of an actor that is lost are given to others; a row with which actors
are lost again and again has failed.
"""

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from kvc.ray.config import BundleConfig
from kvc.ray.package import check_processors, find_ray
from kvc.ray.worker import Ready, Worker
from kvc.schema.closing import Closing
from kvc.schema.errors import ActorLost, KvcError, NodeDiffers
from kvc.serving.batch import Outcome, Row, failure_of

_MOST_LOST: Final = 3  # actors that a row may be lost with
_ALONE: Final = 2  # after so many a row runs alone
_AHEAD: Final = 2  # rows that wait here for each place of an actor
_START: Final = 600.0  # seconds for a cluster to place an actor and load the bundle


class _Actor:
    """An actor, as the driver sees it.

    Attributes:
        handle: Ray's handle.
        held: the rows that it has, by the numbers of their lines.
        room: how many rows it takes at a time; 0 until it has loaded the bundle.
    """

    def __init__(self, handle: Any) -> None:  # noqa: ANN401  Ray's own type
        self.handle = handle
        self.held = dict[int, Row]()
        self.room = 0


class RayAnswering(Closing):
    """Answers rows by actors.

    Attributes:
        running: how many rows it has taken and not returned.
    """

    def __init__(self, config: BundleConfig, digest: str) -> None:
        """Start the actors, on a cluster that the process is connected to.

        Returns when the first actor is ready.

        Args:
            config: the bundle, the number of actors, and their limits.
            digest: the digest of the bundle that must be on all nodes.

        Raises:
            BadSetting: the cluster has too few processors.
            NodeDiffers: a node has another bundle.
            ActorLost: an actor has not started.
            KvcError: an actor cannot load the bundle.
        """
        self._ray, self._config, self._digest = find_ray(), config.on_nodes(), digest
        self.running = self._places = 0
        self._waiting, self._done = deque[Row](), list[Outcome]()
        self._lost = Counter[int]()
        self._actors, self._idle = list[_Actor](), list[_Actor]()
        self._calls = dict[Any, _Actor]()  # of Ray's references
        check_processors(self._ray, config.actors[0], config.num_cpus)
        self._remote = self._ray.remote(Worker).options(
            num_cpus=config.num_cpus,
            scheduling_strategy="SPREAD",
            **config.ray_remote_args,
        )
        for _ in range(config.actors[0]):
            self._begin()
        try:
            self._wait_for_one()
        except BaseException:
            self.close()
            raise

    @property
    def room(self) -> int:
        """Return how many more rows it takes now."""
        return _AHEAD * self._places - self.running

    def start(self, row: Row) -> None:
        """Take a row."""
        self.running += 1
        self._waiting.append(row)

    def take(self, seconds: float | None) -> Sequence[Outcome]:
        """Return outcomes of rows that have ended; wait for one at most so long.

        Args:
            seconds: how long to wait for the first; None for as long as it takes.

        Raises:
            ActorLost, NodeDiffers, KvcError: as `__init__`, for actors that start in
                place of lost ones.
        """
        self._give()
        while self.running and not self._done:
            self._hear(seconds)
            self._give()
            if seconds is not None:
                break
        found, self._done = self._done, []
        self.running -= len(found)
        return found

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._actors, self._idle, self._calls = [], [], {}

    def _begin(self) -> None:
        """Start an actor; it takes rows when it is ready."""
        actor = _Actor(self._remote.remote(self._config))
        self._actors.append(actor)
        self._calls[actor.handle.ready.remote()] = actor

    def _wait_for_one(self) -> None:
        """Wait until an actor is ready.

        Raises:
            ActorLost: none is for a long time.
        """
        limit = time.monotonic() + _START
        while not any(actor.room for actor in self._actors):
            self._hear(1.0)
            if time.monotonic() > limit:
                raise ActorLost(reason=f"no actor has started in {_START:.0f} s")

    def _hear(self, seconds: float | None) -> None:
        """Wait for a call of an actor to end, and read what all ended ones return.

        Raises:
            ActorLost: there are no actors.
        """
        if not self._calls:
            raise ActorLost(reason="all actors are lost")
        calls = list(self._calls)
        ended, _ = self._ray.wait(calls, timeout=seconds)
        if ended:
            ended, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
        for call in ended:
            self._read(call, self._calls.pop(call))

    def _read(self, call: Any, actor: _Actor) -> None:  # noqa: ANN401  Ray's own type
        """Read what a call of an actor returns, or lose the actor."""
        try:
            found = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._lose(actor, error)
            return
        self._idle.append(actor)
        if isinstance(found, Ready):
            self._welcome(actor, found)
            return
        for outcome in found:
            del actor.held[outcome.number]
            self._done.append(outcome)

    def _give(self) -> None:
        """Give waiting rows to actors that do not run a call, those with least first.

        An actor that has rows is called even without new ones, for their outcomes.
        """
        idle, self._idle = self._idle, []
        for actor in sorted(idle, key=lambda one: len(one.held)):
            rows = self._rows_for(actor)
            actor.held |= {row.number: row for row in rows}
            if actor.held:
                self._calls[actor.handle.exchange.remote(rows)] = actor
            else:
                self._idle.append(actor)

    def _rows_for(self, actor: _Actor) -> list[Row]:
        """Return the rows that an actor is given now.

        A row that was lost twice has an actor alone, so that it takes no others along.
        """
        if any(self._lost[number] >= _ALONE for number in actor.held):
            return []
        rows = list[Row]()
        while self._waiting and len(actor.held) + len(rows) < actor.room:
            is_alone = self._lost[self._waiting[0].number] >= _ALONE
            if is_alone and (actor.held or rows):
                break
            rows.append(self._waiting.popleft())
            if is_alone:
                break
        return rows

    def _welcome(self, actor: _Actor, ready: Ready) -> None:
        """Let an actor take rows.

        Raises:
            NodeDiffers: it has another bundle.
        """
        if ready.digest != self._digest:
            raise NodeDiffers(
                path=self._config.model_source,
                node=ready.node[:12],
                expected=self._digest[:16],
                found=ready.digest[:16],
            )
        actor.room = ready.room
        self._places += ready.room

    def _lose(self, actor: _Actor, error: Exception) -> None:
        """Give the rows of a lost actor to others, and start one in its place.

        Raises:
            KvcError: it could not load the bundle.
            ActorLost: it has not started, and there is no other.
        """
        self._actors.remove(actor)
        self._ray.kill(actor.handle)
        if not actor.room:
            cause = getattr(error, "cause", error)  # what it has raised itself
            if isinstance(cause, KvcError):
                raise cause
            if not self._actors:
                raise ActorLost(reason=f"an actor has not started: {cause}")
            return  # the others go on
        self._places -= actor.room
        for row in reversed(actor.held.values()):
            self._lost[row.number] += 1
            if self._lost[row.number] < _MOST_LOST:
                self._waiting.appendleft(row)
                continue
            reason = f"{_MOST_LOST} actors that had the row were lost"
            self._done.append(failure_of(row, ActorLost(reason=reason)))
        self._begin()
