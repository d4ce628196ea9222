"""Quantization of weights: symmetric int8, one scale for each output channel.

Each row is on its own, so that a matrix may come in blocks of rows.
"""

import torch
from torch import Tensor


def channel_scales(weight: Tensor) -> Tensor:
    """Return the scale of each row of a matrix.

    Args:
        weight: float [out, in].

    Returns:
        float32 [out] = absmax / 127; a row of zeros has scale 1.
    """
    absmax = weight.float().abs().amax(dim=1)
    return torch.where(absmax > 0, absmax / 127, torch.ones_like(absmax))


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
