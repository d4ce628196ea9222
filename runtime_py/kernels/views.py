"""Kernels of views: results share the operand's memory, without a copy.

If the operand's strides do not allow a view, torch's RuntimeError is raised.
"""

import torch
from torch import Tensor

from kvc.runtime.kernels.kernel import Kernel


def _alias(x: Tensor) -> Tensor:
    return x


def _slice(
    x: Tensor, dim: int, start: int | None, end: int | None, step: int
) -> Tensor:
    first, last, _ = slice(start, end, step).indices(x.shape[dim])
    if step == 1:
        return x.narrow(dim, first, max(0, last - first))
    return x[(slice(None),) * (dim % x.dim()) + (slice(first, last, step),)]


KERNELS: dict[str, Kernel] = {
    "aten::alias": _alias,
    "aten::expand": Tensor.expand,
    "aten::permute": torch.permute,
    "aten::select.int": torch.select,
    "aten::slice.Tensor": _slice,
    "aten::split_with_sizes": torch.split_with_sizes,
    "aten::squeeze.dims": torch.squeeze,
    "aten::transpose.int": torch.transpose,
    "aten::unsqueeze": torch.unsqueeze,
    "aten::view": Tensor.view,
}
