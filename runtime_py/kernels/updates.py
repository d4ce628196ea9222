"""Kernels that write into operand 0, whose elements `target` holds already.

Every index is checked before the first write, since torch's own writers raise in
the middle: after an IndexOutOfRange or a CacheOverflow the target is as it was.
"""

import torch
from torch import Tensor

from kvc.runtime.kernels.checks import check_index
from kvc.runtime.kernels.kernel import Kernel
from kvc.schema.torch_ops import write_rows


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
}
