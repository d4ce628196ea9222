"""Kernels of ops that stand for several; they round as these do."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kvc.runtime.kernels.kernel import Kernel

_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
}


def _rotary_embedding(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Write x cos + [-second half, first half] sin (RoFormer, Su 2021)."""
    half = x.shape[-1] // 2
    if cos.shape[-1] == half:
        cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))
    first, second = x[..., :half], x[..., half:]
    turned = torch.cat((-second, first), -1)
    torch.add(x * cos, turned.mul_(sin), out=out)


def _glu(out: Tensor, gate: Tensor, up: Tensor, activation: str) -> None:
    torch.mul(_GATES[activation](gate), up, out=out)


KERNELS: dict[str, Kernel] = {
    "kvc::glu": _glu,
    "kvc::rotary_embedding": _rotary_embedding,
}
