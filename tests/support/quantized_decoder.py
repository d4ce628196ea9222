"""A `Decoder` in eager mode with the numerics of quantized linears, slow and separate.

Nothing here is kvc's: weights are quantized in numpy, products are taken row by row
by `quant_reference`.
"""

import copy

import ml_dtypes
import numpy as np
import torch
from quant_reference import embedding_q8, linear_qb4, linear_qd8, quantize_rows
from torch import Tensor, nn

from kvc.compiler.models.decoder import Decoder


class ReferenceMatrix:
    """int8 [out, in] and float32 [out] of a weight, per output channel."""

    def __init__(self, weight: Tensor) -> None:
        values = weight.detach().numpy()
        absmax = np.abs(values).max(axis=1)
        self.scale = np.where(absmax > 0, absmax / np.float32(127), np.float32(1))
        rows = np.rint(values / self.scale[:, None])
        self.values = np.clip(rows, -127, 127).astype(np.int8)

    def linear(self, x: Tensor) -> Tensor:
        """Return x [..., in] times the weight transposed."""
        quantized = quantize_rows(x.numpy())
        return torch.from_numpy(linear_qd8(*quantized, self.values, self.scale, None))


class NarrowMatrix:
    """uint8 [out, in / 2] and float32 [out, in / 32] of a weight, block by block."""

    def __init__(self, weight: Tensor) -> None:
        values = weight.detach().numpy()
        blocks = values.reshape(-1, 32)
        pairs = [_narrow_block(block) for block in blocks]
        stored = np.stack([rounded for rounded, _ in pairs]).reshape(values.shape) + 8
        self.values = (stored[:, 0::2] | stored[:, 1::2] << 4).astype(np.uint8)
        scale = np.array([scale for _, scale in pairs], np.float32)
        self.scale = scale.reshape(len(values), -1)

    def linear(self, x: Tensor) -> Tensor:
        """Return x [..., in] times the weight transposed."""
        quantized = quantize_rows(x.numpy())
        return torch.from_numpy(linear_qb4(*quantized, self.values, self.scale, None))


def _narrow_block(block: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Return int64 [32] within -8 to 7, and the scale of least squared error."""
    found = []
    for end in (7, 7.5, 8, 8.5):
        scale = np.abs(block).max() / np.float32(end)
        scale = scale.astype(ml_dtypes.bfloat16).astype(np.float32)
        rounded = np.clip(np.rint(block / scale), -8, 7)
        found.append((float(((rounded * scale - block) ** 2).sum()), rounded, scale))
    _, rounded, scale = min(found, key=lambda one: one[0])
    return rounded.astype(np.int64), scale


class ReferenceLinear(nn.Module):
    """A linear layer without bias."""

    def __init__(self, matrix: ReferenceMatrix | NarrowMatrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix.linear(x)


class ReferenceEmbedding(nn.Module):
    """Rows of a quantized table."""

    def __init__(self, matrix: ReferenceMatrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, tokens: Tensor) -> Tensor:
        rows = embedding_q8(self.matrix.values, self.matrix.scale, tokens.numpy())
        return torch.from_numpy(rows)


def quantized_decoder(model: Decoder, narrow: bool = False) -> Decoder:
    """Return a copy of the model whose matrices are the reference's.

    With `narrow` those of the layers are int4; embedding and output layer stay int8.
    """
    matrix = NarrowMatrix if narrow else ReferenceMatrix
    quantized = copy.deepcopy(model)
    head = ReferenceMatrix(model.embed.weight)
    quantized.embed = ReferenceEmbedding(head)
    quantized._logits = lambda x: head.linear(quantized.norm(x))
    for layer in quantized.layers:
        for block, names in ((layer.attn, "qkvo"), (layer.ffn, ("gate", "up", "down"))):
            for name in names:
                layer_of = ReferenceLinear(matrix(getattr(block, name).weight))
                setattr(block, name, layer_of)
    return quantized
