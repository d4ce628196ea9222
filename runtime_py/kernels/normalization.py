"""Kernels of softmax and of the norms; results are fresh.

Softmax computes in the dtype of `out`, as eager does if it is given a dtype. torch's
norms take no `out=` from Python, so one activation is copied.
"""

import torch
from torch import Tensor

from kvc.runtime.kernels.adapters import copied
from kvc.runtime.kernels.kernel import Kernel


def _softmax(out: Tensor, x: Tensor, dim: int) -> None:
    torch.softmax(x, dim, dtype=out.dtype, out=out)


def _log_softmax(out: Tensor, x: Tensor, dim: int) -> None:
    torch.log_softmax(x, dim, dtype=out.dtype, out=out)


def _batch_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> None:
    out.copy_(torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, False))


KERNELS: dict[str, Kernel] = {
    "aten::batch_norm": _batch_norm,
    "aten::group_norm": copied(torch.group_norm),
    "aten::layer_norm": copied(torch.layer_norm),
    "aten::log_softmax.int": _log_softmax,
    "aten::rms_norm": copied(torch.rms_norm),
    "aten::softmax.int": _softmax,
}
