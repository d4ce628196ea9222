"""The shared pages of one arena: which ranges are mapped, and how to free them.

In: an arena, and frozen pages: a sealed memfd of the arena's size. Out: the arena's
memory at the same addresses, some of it private maps of frozen pages. Reads see the
frozen pages; the first write to a page makes a private copy. Freeing the private copy
would show the frozen content again, so fresh memory is mapped in its place; if the
system allows no more maps, zeros are written.
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
    """Counts the memory maps of all forks of a process; safe for many threads.

    Attributes:
        taken: the sum of `Lease.count` over all arenas.
    """

    def __init__(self, most: int | None = None) -> None:
        """Allow `most` maps in the process; None for the limit of the system."""
        self._most = most
        self.taken = 0
        self.renew_lock()

    @property
    def most(self) -> int:
        """Return how many maps the process may have."""
        if self._most is None:
            try:
                self._most = int(_SETTING.read_text())
            except (OSError, ValueError):
                self._most = _COMMON_SETTING
        return self._most

    def renew_lock(self) -> None:
        """Replace the lock, after a fork in which another thread may have held it."""
        # Re-entrant: garbage collection may close a session at any point.
        self._lock = threading.RLock()

    def change(self, by: int, whole: bool) -> bool:
        """Change the number of maps if the limit allows; return whether it allowed.

        Args:
            by: the number of additional maps; negative for fewer maps.
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
    """The number of maps of one arena; subtracted when the arena's memory is freed.

    Attributes:
        count: the number of maps.
    """

    def __init__(self, budget: MapBudget, owner: object) -> None:
        self._budget = budget
        self.count = 0
        end = weakref.finalize(owner, self.resize, 0)
        end.atexit = False

    def resize(self, count: int, whole: bool = False) -> bool:
        """Set the number of maps if the limit allows; return whether it allowed.

        A smaller number always succeeds. `MapBudget.change` explains `whole`.
        """
        if not self._budget.change(count - self.count, whole):
            return False
        self.count = count
        return True


MAPS: Final = MapBudget()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MAPS.renew_lock)


# Mapped pages of an arena


class SharedPages:
    """The mapped pages of an arena; replaces `Arena.pages`.

    Attributes:
        parts: frozen pages -> the runs that are mapped from these pages.
        lease: the number of maps that the arena uses.
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
        """Return the `SharedPages` of an arena; make an empty one at the first fork."""
        if not isinstance(arena.pages, cls):
            arena.pages = cls(arena)
        assert isinstance(arena.pages, cls)
        return arena.pages

    @property
    def same(self) -> Intervals:
        """Return the mapped runs that have not been written since they were mapped."""
        return without(self._mapped, self._stale)

    @property
    def sources(self) -> frozenset[Frozen]:
        """Return all memfds that the arena maps, in parts or as a whole."""
        covers = () if self._covers is None else (self._covers,)
        return frozenset([*self.parts, *covers])

    def note_changes(self, runs: Intervals) -> None:
        """Record runs of pages that have been written after they were mapped."""
        self._stale = union([self._stale, common(self._mapped, runs)])

    def move(self, frozen: Frozen, runs: Intervals) -> Intervals:
        """Write runs of the arena into frozen pages, and map them from there.

        A run that cannot be mapped keeps its private pages. Return the runs that were
        written into the frozen pages.
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
        """Map runs from frozen pages; return the runs that could not be mapped."""
        self._add(frozen, runs)  # recorded first, since an interrupt may strike here
        left = runs[self._map(frozen, runs) :]
        self._remove(left)
        return left

    def map_whole(self, frozen: Frozen) -> bool:
        """Map the whole arena at once; ranges without frozen content read zeros.

        The first write to a page without frozen content takes a page of the memfd too.
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
        hit = common(self._mapped, one_run(start, end))
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
        """Map runs until the system refuses one; return the number of mapped runs."""
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
    """Return how many memory maps runs need: two for each run.

    The second map is the memory after the run, since a run splits the map in which it
    lies.
    """
    return 2 * sum(map(len, parts))
