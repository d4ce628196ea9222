"""`Waiting`: the requests that wait for a row; clients take turns.

In: jobs. Out: jobs in the order in which they are to begin: of each client the oldest
first, and of clients the one with the fewest running, which was served longest ago.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping

from kvc.serving.scheduling.job import Job


class Waiting:
    """The jobs that wait; not safe to use from several threads."""

    def __init__(self) -> None:
        # Clients in the order in which they were served, the longest ago first.
        self._clients: OrderedDict[str, deque[Job]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job: Job) -> None:
        """Add a job at the end of its client's line."""
        self._clients.setdefault(job.request.client, deque()).append(job)
        self._count += 1

    def has(self, client: str) -> bool:
        """Tell whether a client has a job that waits; any thread may ask."""
        return client in self._clients

    def in_turn(self, running: Mapping[str, int]) -> Iterator[Job]:
        """Yield the first job of each client, in the order in which they may begin.

        Args:
            running: how many jobs of each client run.
        """
        clients = sorted(self._clients, key=lambda name: running.get(name, 0))
        for name in clients:
            yield self._clients[name][0]

    def remove(self, job: Job) -> None:
        """Remove a job that begins; its client was served just now."""
        name = job.request.client
        line = self._clients[name]
        line.remove(job)
        self._count -= 1
        if line:
            self._clients.move_to_end(name)
        else:
            del self._clients[name]

    def take_if(self, condition: Callable[[Job], bool]) -> list[Job]:
        """Remove and return the jobs for which a condition holds."""
        found: list[Job] = []
        for name, line in list(self._clients.items()):
            left = deque[Job]()
            for job in line:
                (found if condition(job) else left).append(job)
            self._clients[name] = left
            if not left:
                del self._clients[name]
        self._count -= len(found)
        return found
