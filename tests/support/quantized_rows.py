"""Rows to quantize, and what the reference makes of them."""

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


def some_rows(rows: int, width: int) -> Tensor:
    torch.manual_seed(rows * 1000 + width)
    return torch.randn(rows, width) * 10 ** torch.randn(rows, 1) + torch.randn(rows, 1)
