"""Kernels that write into `target`, the memory of operand 0, and kernels of checks.

Every index is checked before the first write, since torch's functions raise after some
writes. So after an IndexOutOfRange or a CacheOverflow the target is unchanged.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from kvc.runtime.kernels.kernel import Kernel
from kvc.schema.errors import BranchMismatch, IndexOutOfRange
from kvc.schema.torch_ops import write_rows
from kvc.schema.torch_ops.rows import check_slots, read_row_lengths


def _index_copy(target: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    check_index(index, 0, 1, target.shape[dim] if target.dim() else 1)
    target.index_copy_(dim, index, source)


def _index_put(
    target: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
    accumulate: bool,
) -> None:
    for size, index in zip(target.shape, indices, strict=False):
        if index is not None:
            check_index(index, -size, 1, size)
    # An overload object: no bound function takes None among the indices.
    torch.ops.aten.index_put_.default(target, indices, values, accumulate)


def _scatter(
    target: Tensor, dim: int, index: Tensor, source: Tensor | int | float | bool
) -> None:
    check_index(index, 0, 1, target.shape[dim] if target.dim() else 1)
    target.scatter_(dim, index, source)


def _index_add(
    target: Tensor, dim: int, index: Tensor, source: Tensor, alpha: int | float | bool
) -> None:
    check_index(index, 0, 1, target.shape[dim] if target.dim() else 1)
    target.index_add_(dim, index, source, alpha=alpha)


def _scatter_add(target: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    check_index(index, 0, 1, target.shape[dim] if target.dim() else 1)
    target.scatter_add_(dim, index, source)


def _scatter_reduce(
    target: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    include_self: bool,
) -> None:
    check_index(index, 0, 1, target.shape[dim] if target.dim() else 1)
    target.scatter_reduce_(dim, index, source, reduce, include_self=include_self)


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def _append(target: Tensor, update: Tensor, axis: int) -> None:
    count = update.shape[axis]
    target.narrow(axis, target.shape[axis] - count, count).copy_(update)


def _replace(target: Tensor, source: Tensor, _: int) -> None:
    target.copy_(source)


_FEW = 32  # up to this count a list of Python ints is faster than two reductions


def check_index(index: Tensor, least: int, count: int, slots: int) -> None:
    """Check that every index begins a run of `count` slots that exist.

    Args:
        index: integers of any shape; each is the first slot of a run.
        least: the least index allowed.
        count: the number of slots in a run.
        slots: the number of slots that exist.

    Raises:
        IndexOutOfRange: an index is below `least`, or a run ends after the last slot.
    """
    for value in _extremes(index):
        if value < least or value + count > slots:
            raise IndexOutOfRange(place="", index=value, size=slots)


def check_rows(index: Tensor, least: int, count: int, slots: int) -> None:
    """Check that the write of each row to a cache fits into the slots of the cache.

    Args:
        index: integers, the first slot that each row writes.
        least: the least index allowed.
        count: the number of slots that each row writes.
        slots: the number of slots of the cache.

    Raises:
        IndexOutOfRange: the write of a row would begin before the first slot.
        CacheOverflow: the write of a row would end after the last slot.
    """
    starts: list[int] = index.reshape(-1).tolist()
    check_slots(starts, [count] * len(starts), slots, least)


def check_counted_rows(
    index: Tensor, row_lengths: Tensor, most: int, slots: int
) -> None:
    """Check that the real tokens of each row fit into the slots of a cache.

    Args:
        index: integers [rows], the first slot that each row writes.
        row_lengths: integers [rows], the number of real tokens in each row.
        most: the greatest row length allowed.
        slots: the number of slots of the cache.

    Raises:
        RowLengthOutOfRange: a row length is negative, or more than `most`.
        IndexOutOfRange, CacheOverflow: as `check_rows`.
    """
    starts: list[int] = index.tolist()
    check_slots(starts, read_row_lengths(row_lengths, len(starts), most), slots)


def check_size(size: int, expected: int) -> None:
    """Raise BranchMismatch unless `size` is the size that a branch was compiled for."""
    if size != expected:
        raise BranchMismatch(size=size, expected=expected)


def _extremes(index: Tensor) -> Iterable[int]:
    """Return elements of `index` that include the least and the greatest element."""
    count = index.numel()
    if count == 1:
        return (int(index.item()),)
    if count <= _FEW:
        values: list[int] = index.reshape(-1).tolist()
        return values
    low, high = torch.aminmax(index)
    return (int(low.item()), int(high.item()))


KERNELS: dict[str, Kernel] = {
    "aten::copy": _copy,
    "aten::index_add": _index_add,
    "aten::index_copy": _index_copy,
    "aten::index_put": _index_put,
    "aten::scatter.src": _scatter,
    "aten::scatter.value": _scatter,
    "aten::scatter_add": _scatter_add,
    "aten::scatter_reduce.two": _scatter_reduce,
    "kvc::append": _append,
    "kvc::cache_update": write_rows,
    "kvc::replace": _replace,
    "aten::_assert_async.msg": torch._assert_async,
    "kvc::check_index": check_index,
    "kvc::check_rows": check_counted_rows,
    "kvc::check_size": check_size,
}
