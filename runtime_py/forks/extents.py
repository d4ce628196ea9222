"""Which pages of an arena hold slots of states.

In: where states lie, which of their slots. Out: runs of whole pages.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.arenas import PAGE_NBYTES
from kvc.runtime.forks.intervals import NONE, Intervals, merged, rounded_out

if TYPE_CHECKING:
    from kvc.runtime.states.layout import Layout

Slots = tuple[int, int] | None  # from one to before another; None for all bytes


def pages_of(spans: "Iterable[tuple[Layout, Slots]]") -> Intervals:
    """Return the pages that hold slots of states."""
    starts, ends = [], []
    for layout, slots in spans:
        low, high = (0, 1) if slots is None else slots
        if slots is None or layout.axis is None:
            begin, low, high = layout.starts, 0, layout.nbytes if low < high else 0
        else:
            begin, high = layout.runs(), min(high, layout.slots)
            low, high = low * layout.slot_nbytes, high * layout.slot_nbytes
        if low < high:
            starts.append(begin + low)
            ends.append(begin + high)
    if not starts:
        return NONE
    runs = merged(np.concatenate(starts), np.concatenate(ends))
    return rounded_out(runs, PAGE_NBYTES)
