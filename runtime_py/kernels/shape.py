"""Kernels that fill, move or resample elements; results are fresh."""

import torch
from torch import Tensor
from torch._C import _nn

from kvc.runtime.kernels.kernel import Kernel, copied, into

Number = int | float | bool


def _full(out: Tensor, _: tuple[int, ...], value: Number, __: torch.dtype) -> None:
    out.fill_(value)


def _arange(
    out: Tensor, start: Number, end: Number, step: Number, _: torch.dtype
) -> None:
    torch.arange(start, end, step, out=out)


def _reshape(out: Tensor, x: Tensor, _: tuple[int, ...]) -> None:
    # `out` is contiguous, `x` need not be: view the result in the operand's shape.
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
    "aten::_adaptive_avg_pool2d": copied(_nn.adaptive_avg_pool2d),
    "aten::_adaptive_avg_pool3d": copied(_nn.adaptive_avg_pool3d),
    "aten::_upsample_bicubic2d_aa": into(_nn._upsample_bicubic2d_aa),
    "aten::_upsample_bilinear2d_aa": into(_nn._upsample_bilinear2d_aa),
    "aten::adaptive_max_pool2d": into(_nn.adaptive_max_pool2d),
    "aten::adaptive_max_pool3d": into(_nn.adaptive_max_pool3d),
    "aten::avg_pool2d": into(_nn.avg_pool2d),
    "aten::avg_pool3d": into(_nn.avg_pool3d),
    "aten::grid_sampler_2d": copied(torch.grid_sampler_2d),
    "aten::grid_sampler_3d": copied(torch.grid_sampler_3d),
    "aten::max_pool2d_with_indices": into(_nn.max_pool2d_with_indices),
    "aten::max_pool3d_with_indices": into(_nn.max_pool3d_with_indices),
    "aten::upsample_bilinear2d": into(_nn.upsample_bilinear2d),
    "aten::upsample_nearest2d": into(_nn.upsample_nearest2d),
}
