"""Quantization of weights: symmetric int8, one scale for each output channel."""

import torch
from torch import Tensor


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize the rows of a matrix.

    Args:
        weight: float [out, in].

    Returns:
        int8 [out, in] within +-127, and float32 scale [out] = absmax / 127; a row of
        zeros has scale 1.
    """
    values = weight.float()
    absmax = values.abs().amax(dim=1)
    scale = torch.where(absmax > 0, absmax / 127, torch.ones_like(absmax))
    rows = (values / scale[:, None]).round().clamp(-127, 127)
    return rows.to(torch.int8), scale
