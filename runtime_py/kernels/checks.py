"""Kernels that write nothing: they raise if something is not as it has to be.

`kvc::check_index` comes before the first write of a method. Its error tells whether the
index is for rows of a full cache, or for elements of a tensor.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from kvc.runtime.kernels.kernel import Kernel
from kvc.schema.errors import BranchMismatch, IndexOutOfRange
from kvc.schema.torch_ops.row_lengths import check_slots, read_row_lengths

_FEW = 32  # up to here a list of Python ints is faster than two reductions


def check_index(index: Tensor, least: int, count: int, slots: int) -> None:
    """Raise IndexOutOfRange unless `count` slots fit from each index on."""
    for value in _extremes(index):
        if value < least or value + count > slots:
            raise IndexOutOfRange(place="", index=value, size=slots)


def check_rows(index: Tensor, least: int, count: int, slots: int) -> None:
    """Check that `count` slots fit from each row's index on.

    Raises:
        IndexOutOfRange: a row would begin before the first slot.
        CacheOverflow: a row would end past the last one.
    """
    starts: list[int] = index.reshape(-1).tolist()
    check_slots(starts, [count] * len(starts), slots, least)


def check_counted_rows(
    index: Tensor, row_lengths: Tensor, most: int, slots: int
) -> None:
    """Check that the tokens of each row, its length of `most`, fit from its index on.

    Raises:
        RowLengthOutOfRange: a row length is negative, or more than `most`.
        IndexOutOfRange, CacheOverflow: as `check_rows`.
    """
    starts: list[int] = index.tolist()
    check_slots(starts, read_row_lengths(row_lengths, len(starts), most), slots)


def check_size(size: int, expected: int) -> None:
    """Raise BranchMismatch unless a size is what a branch takes it for."""
    if size != expected:
        raise BranchMismatch(size=size, expected=expected)


def _extremes(index: Tensor) -> Iterable[int]:
    """Return some elements of `index`, the least and the greatest among them."""
    count = index.numel()
    if count == 1:
        return (int(index.item()),)
    if count <= _FEW:
        values: list[int] = index.reshape(-1).tolist()
        return values
    low, high = torch.aminmax(index)
    return (int(low.item()), int(high.item()))


KERNELS: dict[str, Kernel] = {
    "aten::_assert_async.msg": torch._assert_async,
    "kvc::check_index": check_index,
    "kvc::check_rows": check_counted_rows,
    "kvc::check_size": check_size,
}
