"""Every way in which a fork comes about, forced upon it for a test."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from kvc.runtime.memory import mapping, pages, shared_pages
from kvc.runtime.memory.shared_pages import MAPS


def apart(_: pytest.MonkeyPatch) -> None:
    """Each run of pages is mapped apart, as there are maps enough."""


def whole(patch: pytest.MonkeyPatch) -> None:
    """There are maps for whole arenas alone."""
    patch.setattr(shared_pages, "_FINE_SHARE", 0.0)


def scarce(patch: pytest.MonkeyPatch) -> None:
    """There are maps for a fork or two, then for whole arenas, then for none."""
    patch.setattr(MAPS, "_most", 40 + MAPS.taken)


def none_left(patch: pytest.MonkeyPatch) -> None:
    """The process has no maps to spare."""
    patch.setattr(MAPS, "_most", 0)


def refused(patch: pytest.MonkeyPatch) -> None:
    """The system refuses every third map, and those that are taken back."""
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


def untold(patch: pytest.MonkeyPatch) -> None:
    """The system does not show the page table."""
    patch.setattr(pages, "_PATH", "/nowhere")


def copied(patch: pytest.MonkeyPatch) -> None:
    """The system knows no memfd."""
    patch.setattr(mapping, "is_available", lambda: False)


WAYS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    way.__name__: way
    for way in (apart, whole, scarce, none_left, refused, untold, copied)
}
