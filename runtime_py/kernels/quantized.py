"""Kernels of quantized weights: rows quantized at run time, weights ahead of time.

In: float32 rows, or rows that `_quantize_rows` has quantized; quantized weights. Out:
float32 products. The arithmetic of quantized rows is that of XNNPACK's qd8 operators,
float32 throughout; `kvc::linear_w8` multiplies unquantized float32 rows. Weights are
symmetric: int8 [out, in] with one scale for each output channel, or int4 with one scale
for each block of a row. Each row of activations has a scale and a zero point, computed
when the row is quantized.

A NaN or an infinity in a row raises no error and affects only that row. In these
kernels all products of the row are then NaN or infinite; the XNNPACK library returns
meaningless numbers, some of them finite. A row with a range below 7.5e-37, whose scale
would overflow, gives zeros.
"""

from functools import partial

import torch
from torch import Tensor

from kvc.runtime.kernels.index import select
from kvc.runtime.kernels.kernel import Kernel
from kvc.schema.ops.products import QB4_ROWS
from kvc.schema.torch_ops import multiply_int8, quantize_into

# Tensors, since each number among torch's arguments takes 3 to 4 us (2026-11), and
# since torch computes `255.0 / x` as 255 * (1 / x).
_LEVELS = torch.tensor(255.0)
_LEAST = torch.tensor(-128.0)
_GREATEST = torch.tensor(127.0)
_ZERO = torch.tensor(0.0)
_CHUNK = 1 << 18  # weights converted at a time: 1 MiB of float32, fits the cache


def _quantize_rows(outs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> None:
    """Quantize each row by the row's range, extended to include zero.

    Args:
        outs: q int8 [..., in]; scale float32 [..., 1], the number of steps per unit
            (x is about (q - zero_point) / scale); zero_point int32 [..., 1].
        x: float32 [..., in].
    """
    q, scale, zero_point = outs
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    torch.minimum(low, _ZERO, out=low)
    torch.maximum(high, _ZERO, out=high)
    spread = high - low
    torch.div(_LEVELS, spread, out=scale)
    scale.masked_fill_(torch.logical_not(spread), 1)
    zero = zero_points(low.mul_(scale), high.mul_(scale))
    zero_point.copy_(zero)
    q.copy_(torch.mul(x, scale).round_().add_(zero).clamp_(-128, 127))


def zero_points(low: Tensor, high: Tensor) -> Tensor:
    """Return the zero point of each range from `low` to `high`, as float32.

    The ranges are in quantization steps. The zero point is computed from the end of the
    range with the smaller rounding error.
    """
    from_low, from_high = _LEAST - low, _GREATEST - high
    at_low = (low + _LEAST) + (high + _GREATEST) > _ZERO
    zero = torch.where(at_low, from_low, from_high)
    return zero.clamp_(_LEAST, _GREATEST).round_()


def linear_qd8(
    out: Tensor,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    sums: Tensor | None = None,
) -> None:
    """Write (q W^T - zero_point * sums) / scale * weight_scale + bias.

    The integer part is exact for up to 66,000 inputs; beyond, int32 overflows.

    Args:
        out: float32 [..., out].
        q: int8 [..., in], with `scale` and `zero_point` from `kvc::quantize_rows`.
        scale: float32 [..., 1].
        zero_point: int32 [..., 1]; values are clamped to int8.
        weight: int8 [out, in].
        weight_scale: float32 [out].
        bias: float32 [out].
        sums: the `row_sums` of the weight; None to compute them.
    """
    product = multiply_int8(q.reshape(-1, q.shape[-1]), weight.t())
    rows = row_sums(weight) if sums is None else sums
    product.addcmul_(zero_point.reshape(-1, 1).clamp(-128, 127), rows, value=-1)
    result = out.view(product.shape)
    torch.div(product, scale.reshape(-1, 1), out=result)
    result.mul_(weight_scale)
    if bias is not None:
        result.add_(bias)


def _linear_w8(
    out: Tensor, x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> None:
    """Write x W^T * weight_scale + bias, in float32.

    Args:
        out: float32 [..., out].
        x: float32 [..., in].
        weight: int8 [out, in], converted to float32 a few rows at a time.
        weight_scale: float32 [out].
        bias: float32 [out].
    """
    rows = x.reshape(-1, x.shape[-1])
    result = out.view(len(rows), len(weight))
    step = max(1, _CHUNK // max(1, weight.shape[1]))
    for start in range(0, len(weight), step):
        part = weight[start : start + step].to(torch.float32)
        torch.mm(rows, part.t(), out=result[:, start : start + step])
    result.mul_(weight_scale)
    if bias is not None:
        result.add_(bias)


def row_sums(weight: Tensor) -> Tensor:
    """Return int32 [1, out], the sums of the rows of a weight, int8 [out, in]."""
    return multiply_int8(weight.new_ones(1, weight.shape[1]), weight.t())


def prepare_linear_qd8(weight: Tensor) -> Kernel:
    """Return `kvc::linear_qd8` for a constant weight.

    The row sums of the weight are computed once, ahead of the calls. In a decode call,
    the row sums would take as long as the product, since reading the weight takes most
    of the time of each.
    """
    return partial(linear_qd8, sums=row_sums(weight))


def _linear_qb4(
    out: Tensor,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
) -> None:
    """Write ((q - zero_point) W^T) / scale + bias, converting W a few rows at a time.

    XNNPACK adds the integer product of each block, times the block's scale, and
    subtracts `zero_point` times the sum of W at the end. Every product of this kernel
    is exact in float32 too. So the results of XNNPACK and of this kernel differ only by
    the order of the sums: by less than 1e-6 of the sum of the magnitudes of the added
    terms, for up to 16,384 inputs.

    Args:
        out: float32 [..., out].
        q: int8 [..., in], with `scale` and `zero_point` from `kvc::quantize_rows`.
        scale: float32 [..., 1].
        zero_point: int32 [..., 1]; values are clamped to int8.
        weight: uint8 [out / 8, in / 8, 8, 4]: four bytes hold eight values of a row. A
            value is half a byte, minus 8; the low half of a byte precedes the high
            half.
        weight_scale: bfloat16 [out / 8, in / block, 8].
        bias: float32 [out].
    """
    zero = zero_point.reshape(-1, 1).clamp(-128, 127)
    steps = q.reshape(-1, q.shape[-1]).float().sub_(zero)
    multiply_int4(out, steps, scale, weight, weight_scale, bias)


def multiply_int4(
    out: Tensor,
    steps: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    weight_minimum: Tensor | None = None,
) -> None:
    """Write steps W^T / scale + bias.

    Args:
        out: float32 [..., out].
        steps: float32 [rows, in], the rows as numbers of quantization steps.
        scale: float32 [..., 1], the number of steps per unit.
        weight: uint8 [out / 8, in / 8, 8, 4], as in `kvc::linear_qb4`.
        weight_scale: bfloat16, float16 or float32 [out / 8, in / block, 8].
        bias: float32 [out].
        weight_minimum: float16 or float32, of the shape of `weight_scale`: the weight
            of the value 0, which is -8 times the scale without minimums.
    """
    columns = steps.shape[1]
    result = out.view(len(steps), len(weight) * QB4_ROWS)
    count = max(1, _CHUNK // (QB4_ROWS * columns))
    for first in range(0, len(weight), count):
        part = slice(first, first + count)
        rows = _widened(weight[part], weight_scale[part])
        begin = first * QB4_ROWS
        torch.mm(steps, rows.t(), out=result[:, begin : begin + len(rows)])
    if weight_minimum is not None:
        offsets = torch.add(weight_minimum.float(), weight_scale.float(), alpha=8)
        of_rows = offsets.transpose(1, 2).reshape(result.shape[1], -1)
        sums = steps.view(len(steps), of_rows.shape[1], -1).sum(2)
        result.addmm_(sums, of_rows.t())
    result.div_(scale.reshape(-1, 1))
    if bias is not None:
        result.add_(bias)


def _widened(weight: Tensor, scale: Tensor) -> Tensor:
    """Return rows of a weight of `kvc::linear_qb4` as float32 [rows, in]."""
    fours, scales = weight.transpose(1, 2), scale.transpose(1, 2)
    pairs = torch.stack((fours & 15, fours >> 4), dim=-1)
    blocks = pairs.view(*scales.shape, -1).float().sub_(8)
    return blocks.mul_(scales.float().unsqueeze(-1)).view(len(weight) * QB4_ROWS, -1)


def _embedding_q8(out: Tensor, weight: Tensor, scale: Tensor, indices: Tensor) -> None:
    """Write weight[indices], times the scale of each row, or of each block in a row.

    Args:
        out: float32 [..., width].
        weight: int8 [rows, width].
        scale: float32 [rows]; or float32 [rows, m], a scale for each block of width / m
            values.
        indices: int32 or int64 [...].
    """
    chosen = indices.reshape(-1)
    rows = select(weight, 0, chosen)
    parts = scale.view(*weight.shape[:1], scale.shape[1:].numel())
    scales = select(parts, 0, chosen).unsqueeze(-1)
    blocks = rows.view(*scales.shape[:2], weight.shape[1] // scales.shape[1])
    torch.mul(blocks, scales, out=out.view(blocks.shape))


KERNELS: dict[str, Kernel] = {
    "kvc::embedding_q8": _embedding_q8,
    "kvc::linear_qb4": _linear_qb4,
    "kvc::linear_qd8": linear_qd8,
    "kvc::linear_w8": _linear_w8,
    "kvc::quantize_cache": quantize_into,
    "kvc::quantize_rows": _quantize_rows,
}
