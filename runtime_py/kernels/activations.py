"""Kernels of activation functions; results are fresh, shape and dtype stay.

`torch._C._nn` holds the bound functions that `torch.nn.functional` calls itself;
only there do these take `out=`.
"""

import torch
from torch import Tensor
from torch._C import _nn

from kvc.runtime.kernels import Kernel
from kvc.runtime.kernels.adapters import into


def _gelu(out: Tensor, x: Tensor, approximate: str) -> None:
    _nn.gelu(x, approximate=approximate, out=out)  # type: ignore[call-arg]


def _relu(out: Tensor, x: Tensor) -> None:
    torch.clamp_min(x, 0, out=out)


KERNELS: dict[str, Kernel] = {
    "aten::elu": into(_nn.elu),
    "aten::gelu": _gelu,
    "aten::hardtanh": into(_nn.hardtanh),
    "aten::leaky_relu": into(_nn.leaky_relu),
    "aten::relu": _relu,
    "aten::sigmoid": into(torch.sigmoid),
    "aten::silu": into(_nn.silu),
    "aten::softplus": into(_nn.softplus),
    "aten::tanh": into(torch.tanh),
}
