"""The shared pages of one arena: what is mapped where, and how pages are returned.

In: an arena, frozen pages of its shape. Out: the arena's memory at the same addresses,
some of it private maps of frozen pages: reads use these, a write makes a page of the
arena's own. Freeing such a page would show the frozen content again, so fresh memory
takes the place of the map; if the system has no map left, zeros are written.
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

# How many maps forks may have, since the system allows a process only so many.


_SETTING: Final = Path("/proc/sys/vm/max_map_count")
_COMMON_SETTING: Final = 65530
_FINE_SHARE: Final = 0.5
_WHOLE_SHARE: Final = 0.75


class MapBudget:
    """The maps of all forks of a process; used from many threads.

    Attributes:
        taken: by leases that stand.
    """

    def __init__(self, most: int | None = None) -> None:
        """Allow `most` maps in the process; left out, as many as the system does."""
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
        # Re-entrant: a session may be collected at any point.
        self._lock = threading.RLock()

    def change(self, by: int, whole: bool) -> bool:
        """Take more maps, or give some back; tell whether they are there.

        Args:
            by: how many more; negative to give back.
            whole: whether they are the few that a fork can do with.
        """
        with self._lock:
            share = _WHOLE_SHARE if whole else _FINE_SHARE
            if by > 0 and self.taken + by > self.most * share:
                return False
            self.taken += by
            return True


class Lease:
    """The maps that one arena has; they go back with its memory.

    Attributes:
        count: how many.
    """

    def __init__(self, budget: MapBudget, owner: object) -> None:
        self._budget = budget
        self.count = 0
        end = weakref.finalize(owner, self.resize, 0)
        end.atexit = False

    def resize(self, count: int, whole: bool = False) -> bool:
        """Have `count` maps from now on; tell whether they are there.

        Fewer always are. See `MapBudget.change` for `whole`.
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


# The shared pages of one arena: what is mapped where, and how pages are returned.


class SharedPages:
    """What an arena has mapped; takes the place of `Arena.pages`.

    Attributes:
        parts: frozen pages, and the runs that are mapped from each.
        lease: of the maps.
        length: of the arena, in bytes.
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
        """Return what an arena has mapped; nothing if it has never been forked."""
        if not isinstance(arena.pages, cls):
            arena.pages = cls(arena)
        assert isinstance(arena.pages, cls)
        return arena.pages

    @property
    def same(self) -> Intervals:
        """Return the runs whose content is known to be the frozen one."""
        return without(self._mapped, self._stale)

    @property
    def sources(self) -> frozenset[Frozen]:
        """Return all that is mapped, or lies after what is."""
        covers = () if self._covers is None else (self._covers,)
        return frozenset([*self.parts, *covers])

    def note_changes(self, runs: Intervals) -> None:
        """Note that pages have been written since they were mapped."""
        self._stale = union([self._stale, common(self._mapped, runs)])

    def move(self, frozen: Frozen, runs: Intervals) -> Intervals:
        """Write runs of the arena into frozen pages, and map them from there.

        A run that cannot be mapped stays as it is. Returns the runs that were written.
        """
        written = mapped = 0
        try:
            for start, end in runs.tolist():
                frozen.write(start, self._bytes[start:end])
                written += 1
                if mapped + 1 == written:  # none has been refused
                    mapped += 1  # noted first: an interrupt may come now
                    mapped -= 1 - self._map(frozen, one_run(start, end))
        except OSError:
            pass  # there is no memory for more: the rest is copied
        finally:
            self._add(frozen, runs[:mapped])
        return runs[:written]

    def map(self, frozen: Frozen, runs: Intervals) -> Intervals:
        """Map runs from frozen pages; return those that could not be."""
        self._add(frozen, runs)  # noted first: an interrupt may come now
        left = runs[self._map(frozen, runs) :]
        self._remove(left)
        return left

    def map_whole(self, frozen: Frozen) -> bool:
        """Map all of the arena at once; what is not frozen reads zeros.

        A page that is written there first takes one of the frozen file too.
        """
        if not self._map(frozen, one_run(0, self.length)):
            return False
        self.parts = {}
        self._mapped = self._stale = NONE
        self._add(frozen, frozen.runs)
        self._covers = frozen
        return True

    def drop(self, start: int, end: int) -> None:
        """Give whole pages back, which then read zeros; see `Pages.drop`."""
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
        """Let a run that is mapped read zeros."""
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
        """Map runs up to the first that is refused; return how many that are."""
        return mapping.map_privately(self._address, frozen.fd, runs.tolist())

    def _add(self, frozen: Frozen, runs: Intervals) -> None:
        """Note what has been mapped."""
        if len(runs):
            self._remove(runs)
            self.parts[frozen] = union([self.parts.get(frozen, NONE), runs])
            self._mapped = union(list(self.parts.values()))

    def _remove(self, runs: Intervals) -> None:
        """Note that runs are no longer mapped from where they were."""
        left = {frozen: without(part, runs) for frozen, part in self.parts.items()}
        self.parts = {frozen: part for frozen, part in left.items() if len(part)}
        self._mapped = without(self._mapped, runs)
        self._stale = without(self._stale, runs)


def maps_of(parts: Iterable[Intervals]) -> int:
    """Return how many maps runs take: one each, and one after each."""
    return 2 * sum(map(len, parts))
