"""The number of compute threads of the process, which all programs share.

In: the request of `load(threads=...)`. Out: the number, fixed when the first backend or
kernel needs it; each thread pool has that number of threads. The default is the number
of physical cores that the process can use, since two threads of one core compete for
the same arithmetic units.
"""

import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from kvc.schema.errors import BadSetting, ThreadsFixed

_PROCESSORS = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


@dataclass(slots=True)
class _Size:
    """The number of threads in one process.

    Attributes:
        pid: the id of the process; a forked child has no thread pools, and fixes a new
            number.
        wanted: the number that was requested last, None without a request.
        settled: the fixed number; None before the first computation.
    """

    pid: int
    wanted: int | None = None
    settled: int | None = None


_lock = threading.Lock()
_size = _Size(0)


def _renew_lock() -> None:
    """Replace the lock in a forked child, since a parent's thread may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def request_threads(wanted: int | None) -> None:
    """Request a number of threads; do nothing if `wanted` is None.

    Raises:
        BadSetting: `wanted` is not from 1 to the number of processors of this process.
        ThreadsFixed: the number is already fixed, and is not `wanted`.
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
    """Fix the number of threads for the process, and return the number."""
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
    """Return how many physical cores this process may use, at least 1.

    The number is limited by the processors that the process may run on, by the
    processor time of its control groups, and by OMP_NUM_THREADS, which limits torch
    too.
    """
    allowed = os.sched_getaffinity(0)
    limits = [
        len({_core_of(processor) for processor in allowed}),
        *chain.from_iterable(map(_limit_of, own_groups())),
    ]
    variable = os.environ.get("OMP_NUM_THREADS", "")
    if variable.isdecimal() and int(variable):
        limits.append(int(variable))
    return max(1, min(limits))


class TorchThreads:
    """A context manager that sets how many threads torch uses for the calling thread.

    The previous number is restored at the end of the `with` block. If another thread
    uses torch for the first time during the block, that other thread keeps the new
    number.
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
    """Return a text that is the same for all processors of one core.

    The text lists the processors of the core, or is `processor` if the core is unknown.
    """
    try:
        siblings = _PROCESSORS / f"cpu{processor}" / "topology" / "thread_siblings_list"
        return siblings.read_text().strip()
    except OSError:
        return str(processor)


def own_groups() -> Iterator[Path]:
    """Yield the folder of each control group of this process, the innermost first."""
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
                yield group


def _limit_of(group: Path) -> Iterator[int]:
    """Yield the processor limit in a control group's file `cpu.max`, if it has one."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        yield max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # the file is missing, or has "max"
        return
