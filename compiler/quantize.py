"""Quantization of weights: symmetric, int8 by output channel or block, int4 by block.

Each row is on its own, so that a matrix may come in blocks of rows; for int4 in
multiples of eight, which lie side by side.
"""

from typing import Final

import torch
from torch import Tensor

from kvc.schema.ops.products import QB4_BLOCK, QB4_BYTES, QB4_ROWS
from kvc.schema.ops.row_blocks import weight_blocks

# A block's scale is absmax over the one of these that gives the least squared error.
# Over 7 both ends fit, over more the tails are cut. On the demo's weights the choice
# leaves 8.8% of their root mean square; 7 alone 9.8%, 8 alone 9.4%, 35 choices 8.7%
# (measured 2026-11).
_INT4_ENDS: Final = (7.0, 7.5, 8.0, 8.5)
_LEAST_SCALE: Final = torch.finfo(torch.bfloat16).tiny


def channel_scales(weight: Tensor) -> Tensor:
    """Return the scale of each row of a matrix.

    Args:
        weight: float [out, in].

    Returns:
        float32 [out] = absmax / 127, normal and positive, as XNNPACK demands: a row of
        zeros, or of numbers so small that it would be subnormal, has scale 1.
    """
    scale = weight.float().abs().amax(dim=1) / 127
    return scale.masked_fill_(scale < torch.finfo(torch.float32).tiny, 1)


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize the rows of a matrix.

    Args:
        weight: float [out, in].

    Returns:
        int8 [out, in] within +-127, and float32 [out] of `channel_scales`.
    """
    values = weight.float()
    scale = channel_scales(values)
    rows = values / scale[:, None]
    return rows.round_().clamp_(-127, 127).to(torch.int8), scale


def quantize_int8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize the rows of a matrix, each in blocks as `weight_blocks` says.

    Args:
        weight: float [out, in].

    Returns:
        int8 [out, in] within +-127, and float32 [out, blocks] as of `channel_scales`.
    """
    values, scale = quantize_channels(_int8_parts(weight))
    rows, columns = weight.shape
    return values.view(rows, columns), scale.view(rows, weight_blocks(columns))


def int8_block_scales(weight: Tensor) -> Tensor:
    """Return the scales of `quantize_int8_blocks` alone."""
    rows, columns = weight.shape
    return channel_scales(_int8_parts(weight)).view(rows, weight_blocks(columns))


def _int8_parts(weight: Tensor) -> Tensor:
    """Return the blocks of each row, one after another, as rows of their own."""
    rows, columns = weight.shape
    count = weight_blocks(columns)
    return weight.reshape(rows * count, columns // count)


def quantize_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each block of 32 values of a matrix's rows to int4.

    Scales are rounded to bfloat16 before anything is divided by them, and are normal
    and positive, as XNNPACK demands: a block of zeros, or of numbers so small that
    their scale would be subnormal, has scale 1 and values 0.

    Args:
        weight: float [out, in], `out` a multiple of 8 and `in` of 32.

    Returns:
        uint8 [out / 8, in / 8, 8, 4], each row's values by fours of bytes: of two
        values the first in the low and the second in the high half of a byte, each
        stored as value + 8; and bfloat16 [out / 8, in / 32, 8], the scales.
    """
    blocks = weight.float().reshape(-1, QB4_BLOCK)
    scale = _best_scale(blocks)
    values = _rounded(blocks, scale, torch.empty_like(blocks)).add_(8)
    rows, columns = weight.shape
    fours = columns // (2 * QB4_BYTES)
    pairs = values.to(torch.uint8).view(rows, fours, QB4_BYTES, 2)
    packed = pairs[..., 0] | (pairs[..., 1] << 4)
    scales = scale.to(torch.bfloat16).view(rows, columns // QB4_BLOCK)
    return _side_by_side(packed), _side_by_side(scales)


def _side_by_side(rows: Tensor) -> Tensor:
    """Return [out / 8, n, 8, ...] of [out, n, ...]."""
    return (
        rows.view(len(rows) // QB4_ROWS, QB4_ROWS, *rows.shape[1:])
        .transpose(1, 2)
        .contiguous()
    )


def _best_scale(blocks: Tensor) -> Tensor:
    """Return the scale of each block, float32 [blocks, 1]; blocks float32 [.., 32].

    Errors are in units of the block's absmax, so that no square of one is too large or
    too small for float32.
    """
    absmax = blocks.abs().amax(dim=1, keepdim=True)
    unit = absmax.masked_fill(absmax == 0, 1)
    room = torch.empty_like(blocks)
    best, least = torch.ones_like(absmax), torch.full_like(absmax, torch.inf)
    for end in _INT4_ENDS:
        scale = (absmax / end).to(torch.bfloat16).float()
        scale.masked_fill_(scale < _LEAST_SCALE, 1)
        errors = _rounded(blocks, scale, room).mul_(scale).sub_(blocks).div_(unit)
        error = errors.square_().sum(dim=1, keepdim=True)
        better = error < least
        best = torch.where(better, scale, best)
        least = torch.where(better, error, least)
    return best


def _rounded(blocks: Tensor, scale: Tensor, out: Tensor) -> Tensor:
    """Write the values -8 to 7 for a scale into `out`, as float32, and return it."""
    return torch.div(blocks, scale, out=out).round_().clamp_(-8, 7)
