"""Quantization of weights to int8: symmetric, with a scale per output channel or block.

Rows are independent, so a matrix can be quantized a few rows at a time.
"""

import torch
from torch import Tensor

from kvc.schema.ops.row_blocks import weight_blocks


def channel_scales(weight: Tensor) -> Tensor:
    """Return the scale of each row of a matrix.

    Args:
        weight: float [out, in].

    Returns:
        float32 [out] = absmax / 127, normal and positive, as XNNPACK demands: a row of
        zeros, or of numbers so small that its scale would be subnormal, has scale 1.
    """
    scale = weight.float().abs().amax(dim=1) / 127
    return scale.masked_fill_(scale < torch.finfo(torch.float32).tiny, 1)


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize the rows of a matrix.

    Args:
        weight: float [out, in].

    Returns:
        The values, int8 [out, in] within +-127, and the scales, float32 [out], as of
        `channel_scales`.
    """
    values = weight.float()
    scale = channel_scales(values)
    rows = values / scale[:, None]
    return rows.round_().clamp_(-127, 127).to(torch.int8), scale


def quantize_outputs(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize the weights of a transposed convolution by output channel.

    Args:
        weight: float [in, out, ...].

    Returns:
        The values, int8 [in, out, ...] within +-127, and the scales, float32 [out],
        computed as in `channel_scales`.
    """
    by_output = weight.transpose(0, 1)
    values, scale = quantize_channels(by_output.flatten(1))
    return values.view(by_output.shape).transpose(0, 1).contiguous(), scale


def quantize_int8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize the rows of a matrix in blocks, as `weight_blocks` divides them.

    Args:
        weight: float [out, in].

    Returns:
        The values, int8 [out, in] within +-127, and the scales, float32 [out, blocks],
        computed as in `channel_scales`.
    """
    columns = weight.shape[1]
    return quantize_in_blocks(weight, columns // weight_blocks(columns))


def quantize_in_blocks(weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Quantize the rows of a matrix in blocks of `size` inputs.

    Args:
        weight: float [out, in]; `size` divides `in`.
        size: the number of inputs of a row that share a scale.

    Returns:
        The values, int8 [out, in] within +-127, and the scales, float32 [out, in /
        size], computed as in `channel_scales`.
    """
    rows, columns = weight.shape
    values, scale = quantize_channels(weight.reshape(-1, size))
    return values.view(rows, columns), scale.view(rows, columns // size)
