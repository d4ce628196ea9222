"""The shared pages of one arena: the ranges that are mapped, and how they are freed.

In: an arena, frozen pages of its size. Out: the arena's memory at the same addresses,
some of it private maps of frozen pages: reads use these, a write makes a page of the
arena's own. Freeing such a page would show the frozen content again, so fresh memory
replaces the map; if the system has no map left, zeros are written.
"""

import os
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kvc.runtime.memory import mapping
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.intervals import (
    NONE,
    Intervals,
    common,
    one_run,
    union,
    without,
)
from kvc.runtime.memory.mapping import Frozen

# The limit of maps in a process


_SETTING: Final = Path("/proc/sys/vm/max_map_count")
_COMMON_SETTING: Final = 65530
_FINE_SHARE: Final = 0.5
_WHOLE_SHARE: Final = 0.75


class MapBudget:
    """The maps of all forks of a process; used from many threads.

    Attributes:
        taken: the number of maps in all leases.
    """

    def __init__(self, most: int | None = None) -> None:
        """Allow `most` maps in the process; default: the limit of the system."""
        self._most = most
        self.taken = 0
        self.renew_lock()

    @property
    def most(self) -> int:
        """Return how many maps the process may have."""
        if self._most is None:
            self._most = _read_setting()
        return self._most

    def renew_lock(self) -> None:
        """Make a lock that no other thread holds."""
        # Re-entrant: garbage collection may close a session at any point.
        self._lock = threading.RLock()

    def change(self, by: int, whole: bool) -> bool:
        """Take more maps, or return some; tell whether the limit allows it.

        Args:
            by: the number of additional maps; negative to return maps.
            whole: whether the fork maps the arena as one, which needs few maps and may
                use a greater share of the limit.
        """
        with self._lock:
            share = _WHOLE_SHARE if whole else _FINE_SHARE
            if by > 0 and self.taken + by > self.most * share:
                return False
            self.taken += by
            return True


class Lease:
    """The maps of one arena; they are returned when its memory is freed.

    Attributes:
        count: the number of maps.
    """

    def __init__(self, budget: MapBudget, owner: object) -> None:
        self._budget = budget
        self.count = 0
        end = weakref.finalize(owner, self.resize, 0)
        end.atexit = False

    def resize(self, count: int, whole: bool = False) -> bool:
        """Set the number of maps; tell whether the limit allows it.

        A smaller number always succeeds. See `MapBudget.change` for `whole`.
        """
        if not self._budget.change(count - self.count, whole):
            return False
        self.count = count
        return True


MAPS: Final = MapBudget()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MAPS.renew_lock)


def _read_setting() -> int:
    try:
        return int(_SETTING.read_text())
    except (OSError, ValueError):
        return _COMMON_SETTING


# Mapped pages of an arena


class SharedPages:
    """The mapped pages of an arena; replaces `Arena.pages`.

    Attributes:
        parts: frozen pages -> the runs that are mapped from them.
        lease: the maps in use.
        length: the size of the arena in bytes.
    """

    def __init__(self, arena: Arena, budget: MapBudget = MAPS) -> None:
        self._address, self._bytes, self._own = arena.address, arena.bytes, arena.pages
        self.length = len(self._bytes)
        self.lease = Lease(budget, arena.owner)
        self.parts: dict[Frozen, Intervals] = {}
        self._mapped: Intervals = NONE
        self._stale: Intervals = NONE
        self._covers: Frozen | None = None

    @classmethod
    def of(cls, arena: Arena) -> "SharedPages":
        """Return the mapped pages of an arena; none if it has never been forked."""
        if not isinstance(arena.pages, cls):
            arena.pages = cls(arena)
        assert isinstance(arena.pages, cls)
        return arena.pages

    @property
    def same(self) -> Intervals:
        """Return the runs that are known to have their frozen content."""
        return without(self._mapped, self._stale)

    @property
    def sources(self) -> frozenset[Frozen]:
        """Return all frozen pages that the arena maps, in parts or as a whole."""
        covers = () if self._covers is None else (self._covers,)
        return frozenset([*self.parts, *covers])

    def note_changes(self, runs: Intervals) -> None:
        """Record that pages have been written since they were mapped."""
        self._stale = union([self._stale, common(self._mapped, runs)])

    def move(self, frozen: Frozen, runs: Intervals) -> Intervals:
        """Write runs of the arena into frozen pages, and map them from there.

        A run that cannot be mapped keeps its pages. Return the runs that were written.
        """
        written = mapped = 0
        try:
            for start, end in runs.tolist():
                frozen.write(start, self._bytes[start:end])
                written += 1
                if mapped + 1 == written:  # the system has refused no map yet
                    mapped += 1  # recorded first, since an interrupt may strike here
                    mapped -= 1 - self._map(frozen, one_run(start, end))
        except OSError:
            pass  # there is no memory for more: the caller copies the rest
        finally:
            self._add(frozen, runs[:mapped])
        return runs[:written]

    def map(self, frozen: Frozen, runs: Intervals) -> Intervals:
        """Map runs from frozen pages; return those that could not be mapped."""
        self._add(frozen, runs)  # recorded first, since an interrupt may strike here
        left = runs[self._map(frozen, runs) :]
        self._remove(left)
        return left

    def map_whole(self, frozen: Frozen) -> bool:
        """Map the whole arena at once; ranges without frozen content read zeros.

        The first write to a page of these ranges takes a page of the memfd too.
        """
        if not self._map(frozen, one_run(0, self.length)):
            return False
        self.parts = {}
        self._mapped = self._stale = NONE
        self._add(frozen, frozen.runs)
        self._covers = frozen
        return True

    def drop(self, start: int, end: int) -> None:
        """Free whole pages, which then read zeros; see `Pages.drop`."""
        self._own.drop(start, end)
        piece = one_run(start, end)
        hit = common(self._mapped, piece)
        if not len(hit):
            return
        if end - start == self.length and mapping.map_nothing(
            self._address, self.length
        ):
            self.parts, self._covers = {}, None
            self._mapped = self._stale = NONE
            self.lease.resize(0)
            return
        for low, high in hit.tolist():
            self._uncover(low, high)

    def _uncover(self, low: int, high: int) -> None:
        """Make a mapped run read zeros."""
        run = one_run(low, high)
        before = self.lease.count
        if self.lease.resize(before + 2) and mapping.map_nothing(
            self._address + low, high - low
        ):
            self._remove(run)
            if self._covers is None:
                self.lease.resize(maps_of(self.parts.values()))
            return
        self.lease.resize(before)
        self._bytes[low:high] = 0
        self.note_changes(run)

    def _map(self, frozen: Frozen, runs: Intervals) -> int:
        """Map runs up to the first that the system refuses; return their number."""
        return mapping.map_privately(self._address, frozen.fd, runs.tolist())

    def _add(self, frozen: Frozen, runs: Intervals) -> None:
        """Record that runs have been mapped."""
        if len(runs):
            self._remove(runs)
            self.parts[frozen] = union([self.parts.get(frozen, NONE), runs])
            self._mapped = union(list(self.parts.values()))

    def _remove(self, runs: Intervals) -> None:
        """Record that runs are no longer mapped from frozen pages."""
        left = {frozen: without(part, runs) for frozen, part in self.parts.items()}
        self.parts = {frozen: part for frozen, part in left.items() if len(part)}
        self._mapped = without(self._mapped, runs)
        self._stale = without(self._stale, runs)


def maps_of(parts: Iterable[Intervals]) -> int:
    """Return the number of maps that runs take: one for each run and one after it."""
    return 2 * sum(map(len, parts))
