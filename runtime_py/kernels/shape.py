"""Kernels that fill or move elements without computing: join, tile, rotate; fresh."""

import torch
from torch import Tensor

from kvc.runtime.kernels.adapters import copied, into
from kvc.runtime.kernels.kernel import Kernel

Number = int | float | bool


def _full(out: Tensor, _: tuple[int, ...], value: Number, __: torch.dtype) -> None:
    out.fill_(value)


def _arange(
    out: Tensor, start: Number, end: Number, step: Number, _: torch.dtype
) -> None:
    torch.arange(start, end, step, out=out)


def _reshape(out: Tensor, x: Tensor, _: tuple[int, ...]) -> None:
    # `out` is contiguous, `x` need not be: view the result as the operand.
    out.view(x.shape).copy_(x)


KERNELS: dict[str, Kernel] = {
    "aten::arange.start_step": _arange,
    "aten::cat": into(torch.cat),
    "aten::constant_pad_nd": copied(torch.constant_pad_nd),
    "aten::diagonal": copied(torch.diagonal),
    "aten::flip": copied(torch.flip),
    "aten::full": _full,
    "aten::repeat": copied(Tensor.repeat),
    "aten::reshape": _reshape,
    "aten::roll": copied(torch.roll),
    "aten::stack": into(torch.stack),
    "aten::tril": into(torch.tril),
    "aten::triu": into(torch.triu),
    "aten::unfold": copied(Tensor.unfold),
}
