"""Refuse a table whose rows one method shortens, and another reads otherwise.

In: what each method reads, and which tables it bounds (`capture/renormed.py`). torch
shortens rows in the table itself, which the other method would see.
"""

from collections.abc import Mapping, Sequence

from kvc.compiler.capture import CapturedMethod
from kvc.compiler.capture.renormed import Bound, memories_read, other_reads


def check_bounded(captured: Sequence[CapturedMethod]) -> None:
    """Check that all methods that read a table bound its rows alike.

    Raises:
        CaptureError: one does not.
    """
    bounds: Mapping[object, Bound] = {}
    for each in captured:
        bounds = {**each.bounds, **bounds}
    for each in captured if bounds else ():
        for table in memories_read(each.exported).values():
            if each.bounds.get(table) != bounds.get(table):
                raise other_reads(each.method.name)
