"""Each way in which a session can be forked, and a function that forces this way."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from kvc.runtime.memory import mapping, pages, shared_pages
from kvc.runtime.memory.shared_pages import MAPS

Way = Callable[[pytest.MonkeyPatch], None]


def _set(owner: object, name: str, value: object) -> Way:
    return lambda patch: patch.setattr(owner, name, value)


def refused(patch: pytest.MonkeyPatch) -> None:
    """Make the system refuse every third mapping of pages, and every second removal."""
    real, calls = mapping.map_privately, itertools.count()

    def some(address: int, fd: int, runs: Sequence[Sequence[int]]) -> int:
        for done, run in enumerate(runs):
            if next(calls) % 3 == 2 or not real(address, fd, [run]):
                return done
        return len(runs)

    patch.setattr(mapping, "map_privately", some)
    fresh, others = mapping.map_nothing, itertools.count()

    def few(*arguments: int) -> bool:
        return next(others) % 2 == 1 and fresh(*arguments)

    patch.setattr(mapping, "map_nothing", few)


WAYS: dict[str, Way] = {
    # Each run of pages is mapped apart, as there are maps enough.
    "apart": lambda _: None,
    # There are maps for whole arenas alone.
    "whole": _set(shared_pages, "_FINE_SHARE", 0.0),
    # There are maps for a fork or two, then for whole arenas, then for none.
    "scarce": lambda patch: patch.setattr(MAPS, "_most", 40 + MAPS.taken),
    "none_left": _set(MAPS, "_most", 0),
    "refused": refused,
    # The system does not show the page table.
    "untold": _set(pages, "_PATH", "/nowhere"),
    # The system knows no memfd.
    "copied": _set(mapping, "is_available", lambda: False),
}
