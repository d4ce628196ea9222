"""How many tokens of each row count: the operand `counts` of the cache operators.

The rows of a batch may bring different numbers of tokens to one call. They are padded
after their last one; what the padding holds never matters.
"""

import torch
from torch import Tensor

from kvc.schema.errors import CacheOverflow, CountOutOfRange, IndexOutOfRange


def check_counts(counts: Tensor | None, rows: int, op: str) -> None:
    """Check what does not depend on values; sizes may be symbolic.

    Raises:
        ValueError: `counts` are not int64 [batch].
    """
    if counts is None:
        return
    torch._check_value(
        counts.dtype == torch.int64 and counts.dim() == 1,
        lambda: (
            f"{op}: counts are {counts.dtype} of {counts.dim()} dimensions, "
            f"not int64 of one"
        ),
    )  # type: ignore[no-untyped-call]
    given = counts.shape[0]
    torch._check_value(given == rows, lambda: f"{op}: {given} counts for {rows} rows")  # type: ignore[no-untyped-call]


def read_counts(counts: Tensor | None, rows: int, most: int) -> list[int]:
    """Return how many of `most` tokens count in each row: all without `counts`.

    Raises:
        CountOutOfRange: less than none count, or more than there are.
    """
    if counts is None:
        return [most] * rows
    found: list[int] = counts.tolist()
    for row, count in enumerate(found):
        if not 0 <= count <= most:
            raise CountOutOfRange(row=row, count=count, most=most)
    return found


def check_slots(
    starts: list[int], counts: list[int], slots: int, least: int = 0
) -> None:
    """Check that so many slots fit from each row's first one on.

    Raises:
        IndexOutOfRange: a row would begin before slot `least`.
        CacheOverflow: a row would end past the last slot.
    """
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if start < least:
            raise IndexOutOfRange(place="", index=start, size=slots)
        if start + count > slots:
            raise CacheOverflow(row=row, start=start, count=count, capacity=slots)
