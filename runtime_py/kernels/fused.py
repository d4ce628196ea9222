"""Kernels of ops that stand for several; they round as these do."""

import torch
from torch import Tensor
from torch.nn import functional

from kvc.runtime.kernels import Kernel

_GATES = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
}


def _rotary_embedding(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Write x cos + [-second half, first half] sin (RoFormer, Su 2021)."""
    width = x.shape[-1]
    if cos.shape[-1] != width:
        cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))
    first, second = x.split(width // 2, -1)
    turned = torch.cat((-second, first), -1)
    torch.add(x * cos, turned.mul_(sin), out=out)


def _glu(out: Tensor, gate: Tensor, up: Tensor, activation: str) -> None:
    torch.mul(_GATES[activation](gate), up, out=out)


KERNELS: dict[str, Kernel] = {
    "kvc::glu": _glu,
    "kvc::rotary_embedding": _rotary_embedding,
}
