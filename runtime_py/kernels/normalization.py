"""Kernels of softmax and of the norms over trailing dims; results are fresh.

Softmax computes in the dtype of `out`, as eager does when it is asked for one.
torch's norms take no `out=` from Python, hence a copy of one activation.
"""

import torch
from torch import Tensor

from kvc.runtime.kernels import Kernel
from kvc.runtime.kernels.adapters import copied


def _softmax(out: Tensor, x: Tensor, dim: int) -> None:
    torch.softmax(x, dim, dtype=out.dtype, out=out)


def _log_softmax(out: Tensor, x: Tensor, dim: int) -> None:
    torch.log_softmax(x, dim, dtype=out.dtype, out=out)


KERNELS: dict[str, Kernel] = {
    "aten::layer_norm": copied(torch.layer_norm),
    "aten::log_softmax.int": _log_softmax,
    "aten::rms_norm": copied(torch.rms_norm),
    "aten::softmax.int": _softmax,
}
