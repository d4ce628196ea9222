"""Refuse a table whose rows one method shortens, and another reads otherwise.

In: what each method reads, and which tables it bounds (`capture/renormed.py`). torch
shortens rows in the table itself, which the other method would see.
"""

from collections.abc import Mapping, Sequence

from kvc.compiler.decompose.renormed import Bound, Place, other_reads, places_read
from kvc.compiler.trace import CapturedMethod


def check_bounded(captured: Sequence[CapturedMethod]) -> None:
    """Check that all methods that read a table bound its rows alike.

    Raises:
        CaptureError: one does not.
    """
    bounds: Mapping[Place, Bound] = {}
    for each in captured:
        bounds = {**each.bounds, **bounds}
    for each in captured if bounds else ():
        for read in places_read(each.exported).values():
            wanted = {bound for table, bound in bounds.items() if table.meets(read)}
            if wanted - {each.bounds.get(read)}:
                raise other_reads(each.method.name)
