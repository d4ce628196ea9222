"""Fork an arena: new memory with the same content, over the same pages.

In: an arena, and the pages of the arena that have content. Out: a second arena with the
same content. The common content lies in frozen pages: pages of a sealed memfd, which
both arenas map privately. Pages written since the last fork are moved into frozen pages
first, or copied if they are few. Address space without content is fresh anonymous
memory, since the first write to a mapped page of a memfd takes a page of the memfd too.

There are three ways; the first that works is used. (1) Each run of pages is mapped
separately. (2) If the process has too few memory maps left, the whole arena is mapped
at once. A page that is then first written after the frozen content takes memory twice:
in the arena, and once for all forks in the memfd. (3) If that fails too, or on systems
other than Linux, the content is copied.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from kvc.runtime.memory import mapping
from kvc.runtime.memory.arenas import PAGE_NBYTES, Arena
from kvc.runtime.memory.arrays import Array, copy_into
from kvc.runtime.memory.intervals import (
    NONE,
    Intervals,
    common,
    lengths,
    merged,
    union,
    units_of,
    without,
)
from kvc.runtime.memory.mapping import Frozen
from kvc.runtime.memory.pages import PageTable
from kvc.runtime.memory.shared_pages import SharedPages, maps_of
from kvc.schema.frozen import frozen

# A shorter run is copied, which takes no longer than two system calls.
LEAST_MAPPED: Final = 4 * PAGE_NBYTES
# A longer run is examined page by page, to skip pages that were never written.
_LEAST_LOOKED_AT: Final = 16 * PAGE_NBYTES


def share_arena(
    arena: Arena, twin: Arena, held: Intervals, changed: Intervals, table: PageTable
) -> None:
    """Give an arena of zeros the content of another arena.

    Args:
        arena: the source, whose content stays.
        twin: the target, of the same size.
        held: the pages of the arena whose content the twin needs.
        changed: the pages that may have been written since the last fork.
        table: the page table of this process.
    """
    if mapping.is_available():
        _Fork(arena, twin).share(held, changed, table)
    else:
        _copy(arena, twin, held)


@frozen
class _Content:
    """The content of an arena, in runs of pages.

    Attributes:
        kept: frozen pages -> the runs that the arena maps from these pages and has not
            changed.
        moved: the runs of private pages that are long enough to be moved to frozen
            pages.
        copied: the runs of private pages that are shorter, and are copied.
    """

    kept: Mapping[Frozen, Intervals]
    moved: Intervals
    copied: Intervals

    @property
    def runs(self) -> Intervals:
        """Return the runs of `kept`, `moved` and `copied` together."""
        return union([*self.kept.values(), self.moved, self.copied])


class _Fork:
    """An arena whose content is shared, and the twin that receives the content."""

    def __init__(self, arena: Arena, twin: Arena) -> None:
        self._arena, self._twin = arena, twin
        self._old, self._new = SharedPages.of(arena), SharedPages.of(twin)

    def share(self, held: Intervals, changed: Intervals, table: PageTable) -> None:
        """Give the twin the content of some pages of the arena.

        Args:
            held: the pages whose content the twin needs.
            changed: the pages that may have been written since the last fork.
            table: the page table of this process.
        """
        self._old.note_changes(changed)
        content = self._content(held, table)
        if not (self._share_separately(content) or self._share_whole(content)):
            _copy(self._arena, self._twin, content.runs)

    def _content(self, held: Intervals, table: PageTable) -> _Content:
        same = common(self._old.same, held)
        own = without(held, same)
        found, looked_at = self._look(own, table)
        own = union([without(own, looked_at), found])
        # Examined pages that are not the arena's own still have their mapped content.
        unchanged = union([same, without(looked_at, found)])
        kept = {f: common(part, unchanged) for f, part in self._old.parts.items()}
        return _Content(
            {frozen: part for frozen, part in kept.items() if len(part)},
            own[lengths(own) >= LEAST_MAPPED],
            own[lengths(own) < LEAST_MAPPED],
        )

    def _look(self, runs: Intervals, table: PageTable) -> tuple[Intervals, Intervals]:
        """Look up which pages of long runs are private to the arena.

        Args:
            runs: runs of pages; short runs are not looked up.
            table: the page table of this process.

        Returns:
            The private pages; and the long runs that were looked up. A page of these
            runs that is not private reads zeros, or content of frozen pages.
        """
        found, seen = [], []
        for start, end in runs[lengths(runs) >= _LEAST_LOOKED_AT].tolist():
            own = table.own_pages(self._arena.address + start, end - start)
            if own is not None:
                places = start + np.flatnonzero(own) * PAGE_NBYTES
                found.append(merged(places, places + PAGE_NBYTES))
                seen.append((start, end))
        looked_at = np.array(seen, np.int64).reshape(-1, 2)
        return union(found), looked_at

    def _share_separately(self, content: _Content) -> bool:
        """Map each run separately, if the process has enough maps."""
        kept, moved = content.kept, content.moved
        old, new = self._old, self._new
        before = old.lease.count
        if not new.lease.resize(maps_of([*kept.values(), moved])):
            return False
        if not old.lease.resize(before + maps_of([moved])):
            new.lease.resize(0)
            return False
        left = [content.copied]
        for pages, runs in kept.items():
            left.append(new.map(pages, runs))
        if len(moved):
            made, written = self._freeze(moved)
            left.append(without(moved, written))
            if made is not None:
                left.append(new.map(made, written))
        _copy(self._arena, self._twin, union(left))
        return True

    def _freeze(self, runs: Intervals) -> tuple[Frozen | None, Intervals]:
        """Move runs into new frozen pages; return the pages, and the moved runs."""
        try:
            frozen = Frozen(self._old.length)
        except OSError:  # too many open files, or the size is not supported
            return None, NONE
        written = self._old.move(frozen, runs)
        frozen.seal(written)
        return frozen, written

    def _share_whole(self, content: _Content) -> bool:
        """Map the whole twin from the frozen pages of a single fork.

        Content that these pages lack is copied. Return whether the map was possible.
        """
        runs, sources = content.runs, list(content.kept)
        frozen = sources[0] if sources else self._freeze_whole(runs)
        if len(sources) > 1 or frozen is None or len(without(frozen.runs, runs)):
            return False
        if not _map_whole(self._new, frozen):
            return False
        own = without(runs, content.kept.get(frozen, runs))
        self._new.note_changes(own)
        _copy(self._arena, self._twin, own)
        return True

    def _freeze_whole(self, runs: Intervals) -> Frozen | None:
        """Write all content into new frozen pages; map the whole arena from the pages.

        Return None if the system provides no memfd or no memory.
        """
        try:
            frozen = Frozen(self._old.length)
            for start, end in runs.tolist():
                frozen.write(start, self._arena.bytes[start:end])
        except OSError:
            return None
        frozen.seal(runs)
        _map_whole(self._old, frozen)  # if that fails, the arena keeps its pages
        return frozen


def _map_whole(pages: SharedPages, frozen: Frozen) -> bool:
    before = pages.lease.count
    if not pages.lease.resize(1, whole=True):
        return False
    if not pages.map_whole(frozen):
        pages.lease.resize(before)
        return False
    return True


def _copy(source: Arena, target: Arena, runs: Intervals) -> None:
    """Copy runs of whole pages from one arena to the same offsets of another."""
    short = lengths(runs) < LEAST_MAPPED
    pages = units_of(runs[short], PAGE_NBYTES)
    _as_pages(target)[pages] = _as_pages(source)[pages]
    for start, end in runs[~short].tolist():
        copy_into(target.bytes[start:end], source.bytes[start:end])


def _as_pages(arena: Arena) -> Array:
    return arena.bytes.reshape(-1, PAGE_NBYTES)
