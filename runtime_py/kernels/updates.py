"""Kernels that write into operand 0, whose elements `target` holds already.

Every index is checked before the first write, since torch's own writers raise in
the middle: after an IndexError or a CacheOverflow the target is as it was.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from kvc.runtime.kernels import Kernel
from kvc.schema.torch_ops import write_rows

_FEW = 32  # up to here a list of Python ints is faster than two reductions


def _index_copy(target: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    _check_range(index, 0, target.shape[dim] if target.dim() else 1)
    target.index_copy_(dim, index, source)


def _index_put(
    target: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
    accumulate: bool,
) -> None:
    for size, index in zip(target.shape, indices, strict=False):
        if index is not None:
            _check_range(index, -size, size)
    # An overload object: no bound function takes None among the indices.
    torch.ops.aten.index_put_.default(target, indices, values, accumulate)


def _scatter(
    target: Tensor, dim: int, index: Tensor, source: Tensor | int | float | bool
) -> None:
    _check_range(index, 0, target.shape[dim] if target.dim() else 1)
    target.scatter_(dim, index, source)


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def _check_range(index: Tensor, lower: int, upper: int) -> None:
    """Raise IndexError unless all of `index` is from `lower` to below `upper`."""
    for value in _extremes(index):
        if not lower <= value < upper:
            raise IndexError(f"index {value} is out of range for an axis of {upper}")


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
    "aten::copy": _copy,
    "aten::index_copy": _index_copy,
    "aten::index_put": _index_put,
    "aten::scatter.src": _scatter,
    "aten::scatter.value": _scatter,
    "kvc::cache_update": write_rows,
}
