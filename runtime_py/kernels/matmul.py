"""Kernels of matrix products and convolution in floating point; results are fresh."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from kvc.runtime.kernels.adapters import copied, into
from kvc.runtime.kernels.kernel import Kernel


def _matmul(out: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dim() == 1 and b.dim() == 2:
        # Here torch.matmul would resize `out` to one row first, then squeeze it.
        torch.mm(a.unsqueeze(0), b, out=out.unsqueeze(0))
    else:
        torch.matmul(a, b, out=out)


def _linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if bias is None:
        _matmul(out, x, weight.t())
    elif x.dim() == 2:
        torch.addmm(bias, x, weight.t(), out=out)
    elif x.dim() == 3 and x.is_contiguous():
        # What eager does; its own out= multiplies and adds in two steps.
        rows, results = x.flatten(0, 1), out.flatten(0, 1)
        torch.addmm(bias, rows, weight.t(), out=results)
    else:
        out.copy_(linear(x, weight, bias))


def _addmm(
    out: Tensor, x: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float
) -> None:
    torch.addmm(x, a, b, beta=beta, alpha=alpha, out=out)


def _convolution(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> None:
    none = (0,) * len(stride)  # output padding, of transposed convolutions only
    out.copy_(
        torch.convolution(
            x, weight, bias, stride, padding, dilation, False, none, groups
        )
    )


KERNELS: dict[str, Kernel] = {
    "aten::_cdist_forward": copied(torch.ops.aten._cdist_forward),
    "aten::addmm": _addmm,
    "aten::bmm": into(torch.bmm),
    "aten::conv_transpose1d": copied(torch.conv_transpose1d),
    "aten::conv_transpose2d.input": copied(torch.conv_transpose2d),
    "aten::conv_transpose3d.input": copied(torch.conv_transpose3d),
    "aten::convolution": _convolution,
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::mm": into(torch.mm),
}
