"""Kernels that quantize rows to int8 in blocks of 32 values, and multiply such rows.

In: float32 rows, or quantized rows and weights. Out: quantized rows, or float32
products. Each row has a float32 step size. Each block has a step size too: the row's
step size times an integer factor of at most 31. So blocks of small numbers have small
steps, and the product of a whole row and a weight row is still a sum of integers: (q -
zero point) * factor * weight. An integer sum is exact in any order, so all kernels of
`kvc::linear_q8` give the same bits.

A row with a NaN or an infinity, or with a range that overflows float32, raises no
error: the row's scale and products are NaN, and other rows are not affected. A row with
a range below 2.4e-35, whose scale would overflow, gives zeros.
"""

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvc.runtime.kernels.kernel import Kernel
from kvc.runtime.kernels.quantized import multiply_int4, zero_points
from kvc.schema.ops.row_blocks import BLOCK
from kvc.schema.torch_ops import multiply_int8

MOST_FACTOR: Final = 31
MOST_SUM: Final = 2048  # limit of a row's factors: 2048 * 32 * 255 * 128 is below 2^31
_LEVELS: Final = 255.0
# A tensor, since torch computes `7905.0 / x` as 7905 * (1 / x).
_MOST_STEPS: Final = torch.tensor(_LEVELS * MOST_FACTOR)
_HIGH: Final = 256  # the unit of the high half of a step count


def _quantize_blocks(outs: tuple[Tensor, Tensor, Tensor, Tensor], x: Tensor) -> None:
    """Quantize each block of 32 values by the block's range, extended to include zero.

    Args:
        outs: q int8 [..., in]; scale float32 [..., 1], the number of a row's steps per
            unit; zero_point and factor int8 [..., n], one of each for each of the n
            blocks. x is about (q - zero_point) * factor / scale.
        x: float32 [..., in], `in` up to 32 n.
    """
    q, scale, zero_point, factor = outs
    width, count = x.shape[-1], zero_point.shape[-1]
    padded = pad(x.reshape(-1, width), (0, count * BLOCK - width))
    blocks = padded.view(-1, count, BLOCK)
    low, high = torch.aminmax(blocks, dim=-1)
    low, high = low.clamp_(max=0), high.clamp_(min=0)
    spread = high - low
    most = spread.amax(dim=-1, keepdim=True)
    finite, flat = most.isfinite(), _MOST_STEPS / most == torch.inf
    even = flat.logical_or(finite.logical_not())
    factors, largest = _factors(spread.masked_fill_(even, 0), most)
    steps = largest.mul_(_LEVELS).div_(most).masked_fill_(even, 1)
    scale.copy_(torch.where(finite, steps, torch.nan).view(scale.shape))
    factor.copy_(factors.view(factor.shape))
    of_blocks = steps / factors
    zero = zero_points(low.mul_(of_blocks), high.mul_(of_blocks))
    zero.masked_fill_(finite.logical_not(), 0)
    zero_point.copy_(zero.view(zero_point.shape))
    values = (blocks * of_blocks.unsqueeze(-1)).round_().add_(zero.unsqueeze(-1))
    rows = values.nan_to_num_().clamp_(-128, 127).view(padded.shape)
    q.copy_(rows[:, :width].reshape(q.shape))


def _factors(spread: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor of each block, and the greatest factor allowed in each row.

    The greatest allowed factor is 31, or less if the sum of a row's factors would
    exceed 2048. The factors are float32 and have the shape of `spread`.

    Args:
        spread: float32 [rows, n], the ranges of blocks; a block with the range 0 has
            the factor 1.
        most: float32 [rows, 1], the largest range of each row.
    """
    factors = torch.ones_like(spread)
    largest = torch.ones_like(most)
    open_rows = torch.ones_like(most, dtype=torch.bool)
    for bound in range(MOST_FACTOR, 0, -1):
        rate = torch.tensor(float(bound)) / most
        found = torch.where(spread > 0, spread * rate, 0).ceil_().clamp_(1, bound)
        small = found.sum(dim=-1, keepdim=True) <= MOST_SUM
        settled = open_rows & (small | (bound == 1))
        factors = torch.where(settled, found, factors)
        largest = torch.where(settled, float(bound), largest)
        open_rows &= ~settled
        if not bool(open_rows.any()):
            break
    return factors, largest


def linear_q8(
    out: Tensor,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    factor: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
) -> None:
    """Write rows times weight, dequantized, plus bias, in float32.

    For each block of a weight row, the integer sum of (q - zero_point) * factor *
    weight is exact, and is multiplied by the block's scale. The products are added in
    the order of the blocks, and each addition is rounded. The total is divided by the
    row's `scale`. The sum of a block is exact for up to 65,536 inputs; beyond, int32
    overflows.

    Args:
        out: float32 [..., out].
        q: int8 [..., in]; `q`, `scale`, `zero_point` and `factor` are the results of
            `kvc::quantize_blocks`.
        scale: float32 [..., 1].
        zero_point: int8 [..., n].
        factor: int8 [..., n]; values are clamped to 1 to 31.
        weight: int8 [out, in].
        weight_scale: float32 [out, m], a scale for each block of in / m weights.
        bias: float32 [out].
    """
    # Split into int8 halves, so that int8 products can be used.
    high, low = _halves(_steps(q, zero_point, factor))
    result, blocks = out.view(len(high), len(weight)), weight_scale.shape[1]
    width = weight.shape[1] // blocks
    for block in range(blocks):
        part = slice(block * width, (block + 1) * width)
        other = weight[:, part].t()
        exact = multiply_int8(high[:, part].contiguous(), other).mul_(_HIGH)
        exact += multiply_int8(low[:, part].contiguous(), other)
        scaled = exact.float().mul_(weight_scale[:, block])
        if block:
            result.add_(scaled)
        else:
            result.copy_(scaled)
    result.div_(scale.reshape(-1, 1))
    if bias is not None:
        result.add_(bias)


def _steps(q: Tensor, zero_point: Tensor, factor: Tensor) -> Tensor:
    """Return (q - zero_point) * factor, int16 [rows, in]."""
    width, count = q.shape[-1], zero_point.shape[-1]
    padded = pad(q.reshape(-1, width), (0, count * BLOCK - width))
    steps = padded.view(-1, count, BLOCK).to(torch.int16)
    steps -= zero_point.reshape(-1, count, 1)
    steps *= factor.reshape(-1, count, 1).clamp(1, MOST_FACTOR)
    return steps.view(-1, count * BLOCK)[:, :width]


def _halves(steps: Tensor) -> tuple[Tensor, Tensor]:
    """Split int16 `steps` into two int8 tensors: `steps` = 256 * first + second."""
    high = (steps + _HIGH // 2) >> 8
    return high.to(torch.int8), (steps - (high << 8)).to(torch.int8)


def _linear_q4(
    out: Tensor,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    factor: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    weight_minimum: Tensor | None,
) -> None:
    """Write ((q - zero_point) * factor W^T) / scale + bias, converting W in parts.

    A weight is (value - 8) * scale; with minimums, value * scale + minimum, for which
    the sum of each block of a row, times 8 * scale + minimum, is added.

    Native kernels, and the libraries of backends, compute the exact sum of each block,
    and add these sums times the blocks' scales. This kernel rounds every product. So
    its results differ from those of native kernels and libraries by less than 2e-6 of
    the sum of the magnitudes of the added terms, for up to 16,384 inputs.

    Args:
        out: float32 [..., out].
        q: int8 [..., in]; `q`, `scale`, `zero_point` and `factor` are the results of
            `kvc::quantize_blocks`.
        scale: float32 [..., 1].
        zero_point: int8 [..., n].
        factor: int8 [..., n]; values are clamped to 1 to 31.
        weight: uint8 [out / 8, in / 8, 8, 4], as in `kvc::linear_qb4`.
        weight_scale: bfloat16, float16 or float32 [out / 8, in / block, 8].
        bias: float32 [out].
        weight_minimum: float16 or float32, of the shape of `weight_scale`.
    """
    steps = _steps(q, zero_point, factor).float()
    multiply_int4(out, steps, scale, weight, weight_scale, bias, weight_minimum)


KERNELS: dict[str, Kernel] = {
    "kvc::linear_q4": _linear_q4,
    "kvc::linear_q8": linear_q8,
    "kvc::quantize_blocks": _quantize_blocks,
}
