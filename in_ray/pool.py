"""`Pool`: actors do jobs, one at a time each; jobs of a lost actor go to others.

In: a class with methods `ready()` and `do(job)`, and jobs. Out: what `do` returns, with
the numbers of the jobs, in the order in which they end.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvc.ray.package import check_processors, find_ray
from kvc.schema.closing import Closing
from kvc.schema.errors import ActorLost, KvcError
from kvc.schema.frozen import frozen

_MOST_LOST: Final = 3  # actors that a job may be lost with
_START: Final = 600.0  # seconds for a cluster to place an actor


@frozen
class Places:
    """Where actors are.

    Attributes:
        count: how many there are.
        num_cpus: the processors of each.
        more: further arguments of Ray.
    """

    count: int
    num_cpus: int
    more: Mapping[str, object]


class _Actor:
    """An actor, as the driver sees it.

    Attributes:
        handle: Ray's handle.
        job: the number of the job that it does; None if it does none.
        is_ready: whether it has started.
    """

    def __init__(self, handle: Any) -> None:  # noqa: ANN401  Ray's own type
        self.handle = handle
        self.job: int | None = None
        self.is_ready = False


class Pool(Closing):
    """Actors of one class."""

    def __init__(self, kind: type, config: object, places: Places) -> None:
        """Start actors, on a cluster that the process is connected to.

        Args:
            kind: the class of the actors.
            config: what the class is called with.
            places: where they are.

        Raises:
            MissingPackage: Ray is not installed.
            BadSetting: the cluster has too few processors.
        """
        self._ray, self._config = find_ray(), config
        check_processors(self._ray, places.count, places.num_cpus)
        self._remote = self._ray.remote(kind).options(
            num_cpus=places.num_cpus, scheduling_strategy="SPREAD", **places.more
        )
        self._actors = list[_Actor]()
        self._calls = dict[Any, _Actor]()  # by Ray's references
        self._waiting, self._lost = deque[int](), Counter[int]()
        for _ in range(places.count):
            self._begin()

    def run(self, jobs: Sequence[object]) -> Iterator[tuple[int, object]]:
        """Do jobs, the first ones first.

        Yields:
            The number of a job and what it returned; an `ActorLost` in its place if
            actors were lost with it again and again.

        Raises:
            ActorLost: no actor starts.
            KvcError: a job has raised it.
        """
        self._waiting = deque(range(len(jobs)))
        self._lost.clear()
        left, limit = len(jobs), time.monotonic() + _START
        while left:
            for actor in self._actors:
                self._give(actor, jobs)
            for number, found in self._hear():
                left -= 1
                yield number, found
            if any(actor.is_ready for actor in self._actors):
                limit = time.monotonic() + _START
            elif time.monotonic() > limit:
                raise ActorLost(reason=f"no actor has started in {_START:.0f} s")

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._actors, self._calls = [], {}

    def _begin(self) -> None:
        """Start an actor; it does jobs when it is ready."""
        actor = _Actor(self._remote.remote(self._config))
        self._actors.append(actor)
        self._calls[actor.handle.ready.remote()] = actor

    def _give(self, actor: _Actor, jobs: Sequence[object]) -> None:
        """Give an actor a job, if it has none and one waits."""
        if actor.is_ready and actor.job is None and self._waiting:
            actor.job = self._waiting.popleft()
            self._calls[actor.handle.do.remote(jobs[actor.job])] = actor

    def _hear(self) -> Iterator[tuple[int, object]]:
        """Wait a second at most for a call to end; yield what all ended ones return.

        Raises:
            ActorLost: there are no actors.
            KvcError: a job has raised it.
        """
        if not self._calls:
            raise ActorLost(reason="all actors are lost")
        calls = list(self._calls)
        ended, _ = self._ray.wait(calls, timeout=1.0)
        if ended:
            ended, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
        for call in ended:
            actor = self._calls.pop(call)
            try:
                found = self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                cause = getattr(error, "cause", error)  # what it has raised itself
                raise cause if isinstance(cause, KvcError) else error from None
            except self._ray.exceptions.RayError as error:
                yield from self._lose(actor, error)
                continue
            number, actor.job, actor.is_ready = actor.job, None, True
            if number is not None:
                yield number, found

    def _lose(self, actor: _Actor, error: Exception) -> Iterator[tuple[int, object]]:
        """Let others do the job of a lost actor, and start one in its place.

        Raises:
            ActorLost: it has not started, and there is no other.
        """
        self._actors.remove(actor)
        self._ray.kill(actor.handle)
        if not actor.is_ready:
            if not self._actors:
                raise ActorLost(reason=f"an actor has not started: {error}")
            return  # the others go on
        self._begin()
        if actor.job is None:
            return
        self._lost[actor.job] += 1
        if self._lost[actor.job] < _MOST_LOST:
            self._waiting.appendleft(actor.job)
            return
        reason = f"{_MOST_LOST} actors were lost with one piece of work"
        yield actor.job, ActorLost(reason=reason)
