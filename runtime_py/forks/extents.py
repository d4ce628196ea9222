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


def pages_of(spans: "Iterable[tuple[Layout, tuple[int, int]]]") -> Intervals:
    """Return the pages that hold slots of states, from one to before another.

    All slots of a state are all of its bytes; so are any where it has none.
    """
    starts, ends = [], []
    for layout, (low, high) in spans:
        if low >= min(high, layout.slots or 1):
            continue
        if layout.axis is None or (low == 0 and high >= layout.slots):
            starts.append(layout.starts)
            ends.append(layout.starts + layout.nbytes)
        else:
            runs, high = layout.all_runs, min(high, layout.slots)
            starts.append(runs + low * layout.slot_nbytes)
            ends.append(runs + high * layout.slot_nbytes)
    if not starts:
        return NONE
    found = merged(np.concatenate(starts), np.concatenate(ends))
    return rounded_out(found, PAGE_NBYTES)
