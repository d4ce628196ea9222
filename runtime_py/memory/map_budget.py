"""How many maps forks may have, since the system allows a process only so many.

A fork that maps each run of a cache takes two maps per run. Linux allows 65,530 in a
process (`vm.max_map_count`), and beyond that every request for memory fails. So forks
take leases. Maps that save memory may take half of all, the few that a fork needs at
least may take three quarters, and the rest is left to the process.
"""

import os
import threading
import weakref
from pathlib import Path
from typing import Final

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
