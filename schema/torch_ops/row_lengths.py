"""The operand `row_lengths` of cache operators: how many tokens of each row are real.

The rows of a batch may add different numbers of tokens in one call. They are padded
after their last token; the content of the padding never matters.
"""

import torch
from torch import Tensor

from kvc.schema.errors import CacheOverflow, IndexOutOfRange, RowLengthOutOfRange


def check_row_lengths(row_lengths: Tensor | None, rows: int, op: str) -> None:
    """Check what does not depend on values; sizes may be symbolic.

    Raises:
        ValueError: `row_lengths` are not int64 [batch].
    """
    if row_lengths is None:
        return
    torch._check_value(
        row_lengths.dtype == torch.int64 and row_lengths.dim() == 1,
        lambda: (
            f"{op}: row_lengths are {row_lengths.dtype} of {row_lengths.dim()} "
            "dimensions, "
            f"not int64 of one"
        ),
    )  # type: ignore[no-untyped-call]
    given = row_lengths.shape[0]
    torch._check_value(
        given == rows, lambda: f"{op}: {given} row_lengths for {rows} rows"
    )  # type: ignore[no-untyped-call]


def read_row_lengths(row_lengths: Tensor | None, rows: int, most: int) -> list[int]:
    """Return the row lengths as ints; without `row_lengths`, `most` for each row.

    Raises:
        RowLengthOutOfRange: a row length is negative, or more than `most`.
    """
    if row_lengths is None:
        return [most] * rows
    found: list[int] = row_lengths.tolist()
    for row, count in enumerate(found):
        if not 0 <= count <= most:
            raise RowLengthOutOfRange(row=row, length=count, most=most)
    return found


def check_slots(
    starts: list[int], row_lengths: list[int], slots: int, least: int = 0
) -> None:
    """Check that so many slots fit from each row's first one on.

    Raises:
        IndexOutOfRange: a row would begin before slot `least`.
        CacheOverflow: a row would end past the last slot.
    """
    for row, (start, count) in enumerate(zip(starts, row_lengths, strict=True)):
        if start < least:
            raise IndexOutOfRange(place="", index=start, size=slots)
        if start + count > slots:
            raise CacheOverflow(row=row, start=start, count=count, capacity=slots)
