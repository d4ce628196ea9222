"""A `Decoder` in eager mode with the numerics of quantized linears, slow and separate.

Weights are quantized in numpy, and `quant_reference` multiplies row by row. Only the
choice of the best scale for a block of int4 is taken from kvc: of two scales that are
nearly as good, the order of a sum decides.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from block_reference import linear_q8
from block_reference import quantize_blocks as quantize_blocks_of
from eight_rows import one_by_one, side_by_side
from quant_reference import embedding_q8, linear_qb4, linear_qd8, quantize_rows
from rounded_weights import blocks_of
from torch import Tensor, nn

from kvc.compiler.models.decoder import Decoder
from kvc.compiler.weights.int4 import quantize_int4


class Matrix:
    """A weight as stored numbers and their scales.

    `linear` takes x float32 [..., in], quantizes it, and multiplies it by the weight.
    """

    quantize: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    product: Callable[..., np.ndarray]

    def linear(self, x: Tensor) -> Tensor:
        rows = self.quantize(x.numpy())
        return torch.from_numpy(self.product(*rows, self.values, self.scale, None))


def _as_int8(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return blocks [..., n] rounded to int8 by one scale each, and these scales."""
    absmax = np.abs(blocks).max(axis=-1)
    scale = np.where(absmax > 0, absmax / np.float32(127), np.float32(1))
    steps = np.rint(blocks / scale[..., None])
    return np.clip(steps, -127, 127).astype(np.int8), scale


class ReferenceMatrix(Matrix):
    """A weight as int8 [out, in], with float32 [out] scales, one per output channel."""

    quantize, product = staticmethod(quantize_rows), staticmethod(linear_qd8)

    def __init__(self, weight: Tensor) -> None:
        self.values, self.scale = _as_int8(weight.detach().numpy())


class BlockMatrix(Matrix):
    """A weight as int8 [out, in], with m scales for each row: float32 [out, m].

    It multiplies activations that are quantized in blocks.
    """

    quantize, product = staticmethod(quantize_blocks_of), staticmethod(linear_q8)

    def __init__(self, weight: Tensor) -> None:
        values = weight.detach().numpy()
        blocks = values.reshape(len(values), blocks_of(values.shape[1]), -1)
        steps, self.scale = _as_int8(blocks)
        self.values = steps.reshape(values.shape)


class NarrowMatrix(Matrix):
    """An int4 weight and its float32 scales, stored in the order of `side_by_side`."""

    quantize, product = staticmethod(quantize_rows), staticmethod(linear_qb4)

    def __init__(self, weight: Tensor) -> None:
        values = weight.detach().numpy()
        chosen = quantize_int4(weight.detach(), signed=False)[1]
        scale = one_by_one(chosen.float().numpy())
        rounded = np.rint(values / np.repeat(scale, 32, axis=1))
        stored = (np.clip(rounded, -8, 7) + 8).astype(np.uint8)
        self.values = side_by_side(stored[:, 0::2] | stored[:, 1::2] << 4)
        self.scale = side_by_side(scale)


# Of tables and the output layer, and of the other layers.
MATRICES: dict[str, tuple[type[Matrix], type[Matrix]]] = {
    "xnnpack_q8": (ReferenceMatrix, ReferenceMatrix),
    "xnnpack_q4": (ReferenceMatrix, NarrowMatrix),
    "cpu_q8": (BlockMatrix, BlockMatrix),
}


class ReferenceLinear(nn.Module):
    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix.linear(x)


class ReferenceEmbedding(nn.Module):
    """Looks up rows of a quantized table."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, tokens: Tensor) -> Tensor:
        rows = embedding_q8(self.matrix.values, self.matrix.scale, tokens.numpy())
        return torch.from_numpy(rows)


def quantized_decoder(model: Decoder, recipe: str) -> Decoder:
    table, matrix = MATRICES[recipe]
    quantized = copy.deepcopy(model)
    head = table(model.embed.weight)
    quantized.embed = ReferenceEmbedding(head)
    quantized._logits = lambda x: head.linear(quantized.norm(x))
    for layer in quantized.layers:
        for block, names in ((layer.attn, "qkvo"), (layer.ffn, ("gate", "up", "down"))):
            for name in names:
                layer_of = ReferenceLinear(matrix(getattr(block, name).weight))
                setattr(block, name, layer_of)
    return quantized
