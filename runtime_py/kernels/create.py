"""Kernels that make new tensors, with the dtype of `out`."""

import torch
from torch import Tensor

from kvc.runtime.kernels import Kernel

Number = int | float | bool


def _full(out: Tensor, _: tuple[int, ...], value: Number, __: torch.dtype) -> None:
    out.fill_(value)


def _arange(
    out: Tensor, start: Number, end: Number, step: Number, _: torch.dtype
) -> None:
    torch.arange(start, end, step, out=out)


KERNELS: dict[str, Kernel] = {
    "aten::arange.start_step": _arange,
    "aten::full": _full,
}
