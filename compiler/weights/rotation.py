"""Rotate weights by a fixed orthogonal matrix R, to the same bits on any machine.

R spreads each coordinate over many coordinates. R is a product of four factors: signs,
a Walsh-Hadamard transform of blocks whose size is the greatest power of two that
divides the width, a reflection across the blocks, and a reflection that maps the image
of (1, 1, ...) back to (1, 1, ...). So R keeps means. It commutes with layer norms
without a weight, as it does with root mean square norms. R is applied by sums and
products in float64 in a fixed order, without a linear algebra library. Each class of
this module is the `Make` of a `Computed` source.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

# The smallest block of the transform: in fewer coordinates, a large one would not be
# spread.
LEAST_BLOCK: Final = 16


def block_of(width: int) -> int:
    """Return the greatest power of two that divides a width."""
    return width & -width


def rotated(rows: Tensor) -> Tensor:
    """Return each row times R.

    Args:
        rows: float64 [..., width].

    Returns:
        float64 [..., width].
    """
    ones = torch.ones(rows.shape[-1], dtype=torch.float64)
    from_ones = _spread(ones) - ones
    spread = _spread(rows)
    length = _sum(from_ones * from_ones)
    if not length.item():
        return spread
    return spread - from_ones * (_sum(spread * from_ones) * (2 / length))


def _spread(rows: Tensor) -> Tensor:
    """Return each row times an orthogonal matrix of about equally large entries."""
    width = rows.shape[-1]
    block = block_of(width)
    spread = (rows * _signs(width)).reshape(-1, width // block, block)
    half = 1
    while half < block:
        pairs = spread.reshape(*spread.shape[:2], block // (2 * half), 2, half)
        a, b = pairs.unbind(-2)
        spread = torch.stack((a + b, a - b), -2).reshape(spread.shape)
        half *= 2
    across = _sum(spread.mT).mT * (2 * block / width)
    scale = torch.tensor(1 / block, dtype=torch.float64).sqrt()
    return ((spread - across) * scale).reshape(rows.shape)


def _signs(width: int) -> Tensor:
    """Return 1 or -1 for each coordinate, from a linear congruential generator."""
    state, signs = 1, []
    for _ in range(width):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        signs.append(1.0 if state >> 63 else -1.0)
    return torch.tensor(signs, dtype=torch.float64)


def _sum(rows: Tensor) -> Tensor:
    """Sum each row in the order of a binary tree: [..., width] to [..., 1]."""
    while (width := rows.shape[-1]) > 1:
        half = width // 2
        pairs = rows[..., :half] + rows[..., half : 2 * half]
        rows = torch.cat((pairs, rows[..., 2 * half :]), -1) if width % 2 else pairs
    return rows


def _turned(matrix: Tensor) -> Tensor:
    """Return R' times a matrix [width, in], where R' is the transpose of R."""
    return rotated(matrix.mT.contiguous()).mT


@dataclass(frozen=True, slots=True)
class Rotated:
    """Rotate the input side, the output side, or both, of a matrix or a vector.

    Attributes:
        rows: whether the output side (the rows of a matrix) is rotated.
        columns: whether the input side (the last axis) is rotated.
    """

    rows: bool
    columns: bool

    @property
    def by_rows(self) -> bool:
        """Tell whether each row can be computed separately."""
        return not self.rows

    def __call__(self, matrix: Tensor, /, *scale: Tensor) -> Tensor:
        """Return the rotated form of a matrix [..., out, in].

        If `scale` [in] is given, the inputs are scaled before they are rotated.
        """
        exact = matrix.double()
        for each in scale:
            exact = exact * each.double()
        exact = rotated(exact) if self.columns else exact
        exact = _turned(exact) if self.rows else exact
        return exact.float().contiguous()


@dataclass(frozen=True, slots=True)
class RotatedBias:
    """Compute the bias of a linear layer whose matrix includes a norm's bias.

    Attributes:
        rows: whether the layer's outputs are rotated.
    """

    rows: bool
    by_rows = False

    def __call__(self, weight: Tensor, /, *rest: Tensor) -> Tensor:
        """Return the bias [out] for a layer with the weight [out, in].

        `rest` is the norm's bias [in], and then the layer's own bias [out] if it has
        one.
        """
        before, *bias = rest
        total = _sum(weight.double() * before.double())[:, 0]
        for each in bias:
            total = total + each.double()
        return (rotated(total) if self.rows else total).float()


@dataclass(frozen=True, slots=True)
class RotatedScale:
    """Compute the matrix that scales rotated rows by a norm's weight."""

    by_rows = False

    def __call__(self, weight: Tensor, /, *_: Tensor) -> Tensor:
        """Return the symmetric matrix [width, width] for a norm's weight [width]."""
        return _turned(rotated(weight.double().diag())).float().contiguous()
