"""Weights as recipes store them, and products with them, without kvc's code."""

import torch
from eight_rows import one_by_one
from torch import Tensor

from kvc.compiler.weights.int4 import quantize_int4

BLOCK = 32
WEIGHT_BLOCK = 256  # at most, of int8 weights in blocks


def zero_point(low: Tensor, high: Tensor) -> Tensor:
    """Return the unrounded zero point of a range, whose ends are given in steps."""
    return torch.where((-128 + low) + (127 + high) > 0, -128 - low, 127 - high)


def exact_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [..., in] times the weight [out, in] transposed, rounded only once."""
    return (x.double() @ weight.double().t()).float()


def product_by_int4(x: Tensor, weight: Tensor, signed: bool) -> Tensor:
    """Return x [..., in] times a weight [out, in] that is stored as int4 in blocks.

    Only the choice of the best scale for a block is taken from kvc: of two scales that
    are nearly as good, the order of a sum decides. `signed`: scales may be negative.
    """
    scale = one_by_one(quantize_int4(weight.detach(), signed)[1]).double()
    blocks = weight.double().view(len(weight), -1, BLOCK) / scale[..., None]
    values = blocks.round().clamp(-8, 7) * scale[..., None]
    return (x.double() @ values.flatten(1).t()).float()


def int8_matrix(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values [out, in], as float32, and a scale for each row, [out]."""
    absmax = weight.detach().abs().amax(1)
    scale = torch.where(absmax > 0, absmax / 127, 1.0)
    return (weight / scale[:, None]).round().clamp(-127, 127), scale


def stored_table(weight: Tensor, form: str) -> Tensor:
    """Return an embedding's rows, rounded as a form of storage rounds them."""
    if form == "bfloat16":
        return weight.bfloat16().float()
    count = blocks_of(weight.shape[1]) if form == "int8_blocks" else 1
    values, scale = int8_matrix(weight.reshape(len(weight) * count, -1))
    return (values * scale[:, None]).view(weight.shape)


def blocks_of(width: int) -> int:
    """Return how many scales each row of an int8 weight has, for rows of a width."""
    if width % BLOCK:
        return 1
    fit = (n for n in range(1, width + 1) if width % (n * BLOCK) == 0)
    return next(n for n in fit if width <= n * WEIGHT_BLOCK)
