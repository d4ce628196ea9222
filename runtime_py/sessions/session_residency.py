"""Report what memory of the host the states of a session take: its own, and shared.

In: the memory of a session. Out: a frozen report, counted page by page if the system
shows its page table.
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
    """The memory of the host that the states of a session take; sizes are in bytes.

    Attributes:
        own: in memory, in pages that no other session has; None where the system does
            not say.
        shared: of its address space that still shows pages of a fork.
        frozen: number of a memfd -> bytes in memory, which forks share. Sessions that
            share it report the same number: count it once.
        maps: how many of the process's memory maps (`vm.max_map_count`) it uses.
    """

    own: int | None
    shared: int
    frozen: Mapping[int, int]
    maps: int

    @property
    def total(self) -> int | None:
        """Return all of it, what is shared too; None where the system does not say."""
        return None if self.own is None else self.own + sum(self.frozen.values())


def describe_states(memory: Owner) -> SessionResidency:
    """Return what memory of the host the states of a session take just now."""
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
    """Return how many bytes are read from frozen pages."""
    if written is None:
        return int(lengths(pages.same).sum())
    mapped = np.zeros(len(arena.bytes) // PAGE_NBYTES, np.bool_)
    for runs in pages.parts.values():
        mapped[units_of(runs, PAGE_NBYTES)] = True
    return int(np.count_nonzero(mapped & ~written)) * PAGE_NBYTES
