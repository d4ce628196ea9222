"""Kernels of attention, norms and fused operators.

A fused operator rounds after each of its parts, as separate operators would.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from kvc.runtime.kernels.kernel import Kernel, copied
from kvc.schema.torch_ops import attend_into

_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
}
_ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    **_GATES,
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
    # As capturing takes them apart; torch's kernels multiply by a sixth.
    "hard_swish": lambda x: x * torch.clamp(x + 3, 0, 6) / 6,
    "hard_sigmoid": lambda x: torch.clamp(x + 3, 0, 6) / 6,
}


def _rotary_embedding(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Write x cos + [-second half of x, first half of x] sin (RoFormer, Su 2021)."""
    half = x.shape[-1] // 2
    if cos.shape[-1] == half:
        cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))
    first, second = x[..., :half], x[..., half:]
    torch.add(x * cos, torch.cat((-second, first), -1).mul_(sin), out=out)


def _glu(out: Tensor, gate: Tensor, up: Tensor, activation: str) -> None:
    torch.mul(_GATES[activation](gate), up, out=out)


def _ended_convolution(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    ending: str,
    low: float | None,
    high: float | None,
) -> None:
    made = torch.convolution(
        x, weight, bias, stride, padding, dilation, False, (0,) * len(stride), groups
    )
    made = made if residual is None else made + residual
    if ending == "clamp":
        torch.clamp(made, low, high, out=out)
    else:
        out.copy_(_ENDINGS[ending](made))


def _pointwise_depthwise(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ending: str,
    low: float | None,
    high: float | None,
    planes: Tensor,
    planes_bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    *planes_ending: object,
) -> None:
    between = x.new_empty((x.shape[0], weight.shape[0], *x.shape[2:]))
    ones, none = (1,) * len(stride), (0,) * len(stride)
    single = (ones, none, ones, 1, ending, low, high)
    _ended_convolution(between, x, weight, bias, None, *single)
    settings = (stride, padding, dilation, weight.shape[0], *planes_ending)
    _ended_convolution(out, between, planes, planes_bias, None, *settings)  # type: ignore[arg-type]  # as the signature has them


def _scaled(weight: Tensor, scale: Tensor) -> Tensor:
    """Return int8 weights [out, in, ...] times their scales, float32 [out]."""
    return weight.float().mul_(scale.view(-1, *[1] * (weight.dim() - 1)))


def _convolution_w8(
    out: Tensor, x: Tensor, weight: Tensor, scale: Tensor, *rest: object
) -> None:
    """Write a `kvc::convolution` by weights, int8 [out, in, ...], times float32 [out].

    Each weight is multiplied by its scale, and the product rounded, before it is used.
    """
    _ended_convolution(out, x, _scaled(weight, scale), *rest)  # type: ignore[arg-type]  # as the signature has them


def _pointwise_depthwise_w8(
    out: Tensor, x: Tensor, weight: Tensor, scale: Tensor, *rest: object
) -> None:
    """Write a `kvc::pointwise_depthwise`, the first weights as `_convolution_w8`."""
    _pointwise_depthwise(out, x, _scaled(weight, scale), *rest)  # type: ignore[arg-type]  # as the signature has them


def _conv_transpose_w8(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> None:
    """Write a transposed convolution by weights, int8 [in, out / groups, ...].

    The scales are float32 [out].
    """
    inputs, outputs, *axes = weight.shape
    parts = weight.float().view(groups, inputs // groups, outputs, *axes)
    parts.mul_(scale.view(groups, 1, outputs, *[1] * len(axes)))
    weight = parts.view(weight.shape)
    settings = (stride, padding, dilation, True, output_padding, groups)
    out.copy_(torch.convolution(x, weight, bias, *settings))


def _sdpa(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> None:
    out.copy_(
        scaled_dot_product_attention(
            q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    )


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
    "kvc::convolution": _ended_convolution,
    "kvc::pointwise_depthwise": _pointwise_depthwise,
    "kvc::convolution_w8": _convolution_w8,
    "kvc::pointwise_depthwise_w8": _pointwise_depthwise_w8,
    "kvc::conv_transpose_w8": _conv_transpose_w8,
    "kvc::glu": _glu,
    "kvc::rotary_embedding": _rotary_embedding,
    "aten::scaled_dot_product_attention": _sdpa,
    "kvc::attention": attend_into,
    "aten::batch_norm": _batch_norm,
    "aten::group_norm": copied(torch.group_norm),
    "aten::layer_norm": copied(torch.layer_norm),
    "aten::log_softmax.int": _log_softmax,
    "aten::rms_norm": copied(torch.rms_norm),
    "aten::softmax.int": _softmax,
}
