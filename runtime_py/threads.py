"""How many threads this process computes with: one number, for all programs.

In: the request of `load(threads=...)`. Out: the number, fixed when the first backend or
kernel needs it. The default is one for each physical core that the process may use,
since threads of one core wait for each other in what kvc computes. Each thread pool has
this size, and there is one for the process.
"""

import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvc.schema.errors import BadSetting, ThreadsFixed

_PROCESSORS = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


@dataclass(slots=True)
class _Size:
    """What is known of the number of threads in one process.

    Attributes:
        pid: of the process; a fork has no pools, and chooses anew.
        wanted: what was asked for last, None for nothing.
        settled: the number since the first computation, None before.
    """

    pid: int
    wanted: int | None = None
    settled: int | None = None


_lock = threading.Lock()
_size = _Size(0)


def _renew_lock() -> None:
    """Give a child of the process a lock that none of its parent's threads holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def request_threads(wanted: int | None) -> None:
    """Ask for a number of threads; None is content with any.

    Raises:
        BadSetting: it is not between 1 and the processors that the process may use.
        ThreadsFixed: programs of this process compute with another number already.
    """
    if wanted is None:
        return
    most = len(os.sched_getaffinity(0))
    if type(wanted) is not int or not 1 <= wanted <= most:
        expected = f"1 to {most}, as many processors as this process may use"
        raise BadSetting(name="threads", expected=expected, found=repr(wanted))
    with _lock:
        size = _current()
        if size.settled is None:
            size.wanted = wanted
        elif size.settled != wanted:
            raise ThreadsFixed(wanted=wanted, found=size.settled)


def settle_threads() -> int:
    """Return the number of threads, which stays from now on."""
    with _lock:
        size = _current()
        if size.settled is None:
            size.settled = size.wanted or default_threads()
        return size.settled


def _current() -> _Size:
    global _size
    if _size.pid != os.getpid():
        _size = _Size(os.getpid())
    return _size


def default_threads() -> int:
    """Return how many physical cores this process may use, 1 at the least.

    That is the cores of the processors that it may run on, no more than the processor
    time of its control groups, and no more than OMP_NUM_THREADS, which limits torch.
    """
    allowed = os.sched_getaffinity(0)
    limits = [len({_core_of(processor) for processor in allowed}), *_group_limits()]
    variable = os.environ.get("OMP_NUM_THREADS", "")
    if variable.isdecimal() and int(variable):
        limits.append(int(variable))
    return max(1, min(limits))


class TorchThreads:
    """The calling thread's torch kernels run with so many threads in here.

    What was there before comes back at the end. A thread that uses torch for the first
    time in its life meanwhile starts with this number, which torch keeps for it.
    """

    __slots__ = ("_before", "_count")

    def __init__(self, count: int) -> None:
        self._count = count
        self._before = count

    def __enter__(self) -> None:
        import torch

        self._before = torch.get_num_threads()
        if self._before != self._count:
            torch.set_num_threads(self._count)

    def __exit__(self, *_: object) -> None:
        if self._before != self._count:
            import torch

            torch.set_num_threads(self._before)


def _core_of(processor: int) -> str:
    """Return the processors of one core, as text; itself where nobody says."""
    try:
        siblings = _PROCESSORS / f"cpu{processor}" / "topology" / "thread_siblings_list"
        return siblings.read_text().strip()
    except OSError:
        return str(processor)


def _group_limits() -> Iterator[int]:
    """Yield how many processors each control group around this process may fill."""
    try:
        own = _OWN_GROUP.read_text().splitlines()
    except OSError:
        return
    for line in own:
        if not line.startswith("0::/"):
            continue
        folder = _GROUPS / line.removeprefix("0::/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(_GROUPS):
                yield from _limit_of(group)


def _limit_of(group: Path) -> Iterator[int]:
    """Yield the limit that a control group's file `cpu.max` states, if it does."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        yield max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # not there, or "max"
        return
