"""Rows to quantize, and their values as the reference kernels quantize them."""

import torch
from kernel_calls import run
from torch import Tensor

F32, I8, I32 = torch.float32, torch.int8, torch.int32


def reference(op: str, arguments: tuple[object, ...], *results: tuple[object, ...]):
    with torch.inference_mode():
        return run(op, arguments, results)


def quantized(x: Tensor) -> tuple[Tensor, ...]:
    lead = (*x.shape[:-1], 1)
    return reference(
        "kvc::quantize_rows", (x,), (x.shape, I8), (lead, F32), (lead, I32)
    )


def in_blocks(x: Tensor) -> tuple[Tensor, ...]:
    """Return the results of `kvc::quantize_blocks` for rows x [..., width]."""
    lead = x.shape[:-1]
    blocks = ((*lead, -(-x.shape[-1] // 32)), I8)
    return reference(
        "kvc::quantize_blocks", (x,), (x.shape, I8), ((*lead, 1), F32), blocks, blocks
    )


def some_blocks(rows: int, width: int) -> Tensor:
    """Return rows float32 [rows, width] whose blocks of 32 differ in size and mean."""
    torch.manual_seed(rows * 1000 + width)
    count = -(-width // 32)
    size = 10 ** torch.randn(rows, count), torch.randn(rows, count)
    scale, shift = (each.repeat_interleave(32, 1)[:, :width] for each in size)
    return (torch.randn(rows, width) * scale + shift) * 10 ** torch.randn(rows, 1)


def some_rows(rows: int, width: int) -> Tensor:
    torch.manual_seed(rows * 1000 + width)
    return torch.randn(rows, width) * 10 ** torch.randn(rows, 1) + torch.randn(rows, 1)
