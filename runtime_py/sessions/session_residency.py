"""Report the host memory of a session's states: private, and shared with forks.

In: the memory of a session. Out: a frozen report, counted page by page if the system
provides its page table.
"""

from collections.abc import Mapping

import numpy as np

from kvc.runtime.memory.arenas import PAGE_NBYTES, Arena
from kvc.runtime.memory.intervals import lengths, units_of
from kvc.runtime.memory.pages import Flags, PageTable
from kvc.runtime.memory.shared_pages import SharedPages
from kvc.runtime.states.owner import Owner
from kvc.schema.frozen import frozen


@frozen
class SessionResidency:
    """The host memory that the states of a session occupy; sizes are in bytes.

    Attributes:
        own: the resident bytes that no other session shares; None if the system does
            not report them.
        shared: how many bytes of the states are read from pages that are shared with
            forks.
        frozen: inode of a memfd -> resident bytes of the memfd, which forks share.
            Sessions that share a memfd report the same inode, so add up each inode
            once.
        maps: how many memory maps of the process (limit: `vm.max_map_count`) the states
            use.
    """

    own: int | None
    shared: int
    frozen: Mapping[int, int]
    maps: int

    @property
    def total(self) -> int | None:
        """Return `own` plus the bytes in `frozen`; None if `own` is None."""
        return None if self.own is None else self.own + sum(self.frozen.values())


def describe_states(memory: Owner) -> SessionResidency:
    """Return a report of the host memory that a session's states occupy now."""
    own: int | None = 0
    shared = maps = 0
    frozen: dict[int, int] = {}
    with PageTable() as table:
        for arena in memory.arenas.values():
            written = table.own_pages(arena.address, len(arena.bytes), alone=True)
            if written is None or own is None:
                own = None
            else:
                own += int(np.count_nonzero(written)) * PAGE_NBYTES
            if isinstance(arena.pages, SharedPages):
                shared += _shared(arena, arena.pages, written)
                frozen.update({f.inode: f.nbytes for f in arena.pages.sources})
                maps += arena.pages.lease.count
    return SessionResidency(own, shared, frozen, maps)


def _shared(arena: Arena, pages: SharedPages, written: Flags | None) -> int:
    """Return how many bytes of an arena are read from pages shared with forks."""
    if written is None:
        return int(lengths(pages.same).sum())
    mapped = np.zeros(len(arena.bytes) // PAGE_NBYTES, np.bool_)
    for runs in pages.parts.values():
        mapped[units_of(runs, PAGE_NBYTES)] = True
    return int(np.count_nonzero(mapped & ~written)) * PAGE_NBYTES
