"""What an attention has of a cache: where it was written, and what hides its scores.

In: the updates that keys and values come from, the grids of a partition. Out: the one
place where both are written, and the grid of what is added to scores.
"""

from collections.abc import Sequence

from kvc.runtime.delegates.cache_writes import Writes
from kvc.runtime.delegates.qnn.emitting import NotTaken
from kvc.runtime.delegates.qnn.fixed_emitting import grid_of
from kvc.runtime.delegates.qnn.ranges import HIDING, reach_of
from kvc.schema.backends.grids import Grid
from kvc.schema.backends.qnn_fixed import Grids
from kvc.schema.frozen import frozen


@frozen
class Update:
    """A `kvc::cache_update` that has been met.

    Attributes:
        cache: value of the old content.
        rows: the device's name of the new rows.
        place: operands that say where the rows go.
        writes: where they go.
    """

    cache: int
    rows: str
    place: tuple[object, ...]
    writes: Writes


def same_place(
    written: Sequence[Update | None], layout: object, keep: object
) -> Writes | None:
    """Return where keys and values are written, None where they are not.

    Args:
        written: the update of the keys, and that of the values.
        layout: in which attention reads them.
        keep: likewise, how many stay at the start of a ring.

    Raises:
        NotTaken: they are written at two places, or in another layout.
    """
    one, other = written
    if one is None and other is None:
        return None
    if one is None or other is None or one.place != other.place:
        raise NotTaken("keys and values are not written at the same place")
    if one.place[2:] != (layout, keep):
        raise NotTaken("a cache is read in another layout than it is written")
    return one.writes


def hiding(grids: Grids) -> Grid:
    """Return the grid of what hides scores, of any attention."""
    ends = [reach_of(grid) for grid in grids.scores.values()]
    return grid_of((-max(high - low for low, high in ends) - HIDING, 0.0))
