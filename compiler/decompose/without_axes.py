"""Decompositions for tensors without axes, which torch takes for rows of one.

In: a call of an operator along an axis while it is traced. Out: its result, computed on
tensors of one axis; NotImplemented where all have axes, which leaves the call.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_aten = torch.ops.aten
_LEFT: object = NotImplemented  # the call as it is


def _topk(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> object:
    if self.dim():
        return _LEFT
    return self.clone(), torch.zeros((), dtype=torch.int64)


def _flip(self: Tensor, dims: list[int]) -> object:
    return _LEFT if self.dim() else self.clone()


def _gather(
    self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
) -> object:
    if 0 in index.shape:  # of any dtype and rank
        return self.new_zeros(index.shape)
    if self.dim() == index.dim():
        return _LEFT
    return _row(self).gather(dim, _row(index)).reshape(index.shape)


def _scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> object:
    if self.dim() == index.dim() == src.dim():
        return _LEFT
    made = _row(self).scatter(dim, _row(index), _row(src))
    return made.reshape(self.shape)


def _scatter_number(
    self: Tensor, dim: int, index: Tensor, value: complex, *, reduce: str
) -> Tensor:
    numbers = self.new_full(index.shape, value)
    made: Tensor = _aten.scatter.reduce(self, dim, index, numbers, reduce=reduce)
    return made


def _take(self: Tensor, index: Tensor) -> Tensor:
    """Take at places of a tensor's elements, counted in their order."""
    made: Tensor = _aten.index.Tensor(self.reshape(-1), [index.reshape(-1)])
    return made.reshape(index.shape)


def _row(x: Tensor) -> Tensor:
    return x if x.dim() else x.reshape(1)


WITHOUT_AXES: Mapping[torch._ops.OperatorBase, Callable[..., object]] = {
    _aten.flip.default: _flip,
    _aten.gather.default: _gather,
    _aten.scatter.src: _scatter,
    _aten.scatter.value_reduce: _scatter_number,
    _aten.take.default: _take,
    _aten.topk.default: _topk,
}
