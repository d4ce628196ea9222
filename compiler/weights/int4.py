"""Quantization of a matrix to int4, with one scale per block of 32 inputs of a row.

If a `Factor` is given, the statistics of the layer's inputs are used, too: columns are
rounded one after another, and the error of each column is compensated in the later
columns (GPTQ: Frantar and others, 2022).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvc.schema.ops.products import QB4_BLOCK, QB4_BYTES, QB4_ROWS

# A block's extreme divided by each of these is tried as its scale, and then the scale
# that fits the resulting integers. With 7, both ends of a block fit; with 8, the end
# that a negative scale turns into -8; with more, the tails are clipped. Relative to the
# root mean square of SmolLM2's layers, the error is 8.4%, 7.7% with negative scales
# (2026-11).
_ENDS: Final = (6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5)
_LEAST_SCALE: Final = torch.finfo(torch.bfloat16).tiny
_DAMPING: Final = 0.01  # as a share of the mean of the diagonal


@dataclass(frozen=True, slots=True)
class Factor:
    """The second moments of a layer's inputs, prepared for rounding.

    Attributes:
        upper: float32 [in, in], upper triangular U with U'U = the inverse of the damped
            moments. Row i, divided by its diagonal, is the change of later columns for
            an error of column i.
        importance: float32 [in], the damped mean square of each input, up to a constant
            factor: the weight of a squared error of its column.
    """

    upper: Tensor
    importance: Tensor

    @classmethod
    def of(cls, moments: Tensor) -> "Factor":
        """Return the factor of second moments, float [in, in], symmetric and finite.

        An input that is always zero counts as independent of the other inputs, with the
        mean of all mean squares. If all inputs are zero, the moments are the identity.
        """
        # The lower Cholesky factor of the moments in reversed order is upper triangular
        # in the original order: moments = R R', and U is R's inverse.
        turned = moments.flip(0, 1).double()
        diagonal = turned.diagonal()
        damping = float(diagonal.mean()) or 1.0
        diagonal[diagonal <= 0] = damping
        damping *= _DAMPING
        diagonal += damping
        lower, failed = torch.linalg.cholesky_ex(turned)
        while failed:  # sums of float32 can have larger errors than the damping
            damping *= 2
            diagonal += damping
            lower, failed = torch.linalg.cholesky_ex(turned)
        importance = (diagonal.flip(0) / diagonal.max()).float()
        del turned, diagonal  # in wide layers each of these takes some GB
        inverse = torch.eye(len(lower), dtype=torch.float64)
        torch.linalg.solve_triangular(lower, inverse, upper=False, out=inverse)
        return cls(inverse.flip(0, 1).float(), importance)


def quantize_int4(
    weight: Tensor, signed: bool, factor: Factor | None = None
) -> tuple[Tensor, Tensor]:
    """Quantize a matrix to int4, with a scale for each block of 32 values of a row.

    Scales are rounded to bfloat16 before any division by them, and their magnitudes are
    normal numbers: a block of zeros, or of numbers so small that their scale would be
    subnormal, has scale 1 and values 0.

    Args:
        weight: float [out, in], `out` a multiple of 8 and `in` of 32.
        signed: whether scales may be negative; XNNPACK demands positive scales.
        factor: the factor for the layer's inputs [in]; None without samples.

    Returns:
        The values, uint8 [out / 8, in / 8, 8, 4]: each row in groups of four bytes. A
        byte holds two values, the first in its low half and the second in its high
        half, each stored as value + 8. And the scales, bfloat16 [out / 8, in / 32, 8].
    """
    rows, columns = weight.shape
    if factor is None:
        blocks = weight.float().reshape(-1, QB4_BLOCK)
        scales = _best_scale(blocks, signed, None)
        values = _rounded(blocks, scales)
    else:
        values, scales = _in_order(weight.float(), signed, factor)
    packed = packed_int4(values.add_(8).to(torch.uint8).view(rows, columns))
    scales = scales.to(torch.bfloat16).view(rows, columns // QB4_BLOCK)
    return packed, side_by_side(scales)


def packed_int4(values: Tensor) -> Tensor:
    """Pack values two to a byte, and eight rows side by side.

    Args:
        values: uint8 [out, in], 0 to 15; `out` and `in` are multiples of 8.

    Returns:
        uint8 [out / 8, in / 8, 8, 4], as of `quantize_int4`.
    """
    rows, columns = values.shape
    pairs = values.view(rows, columns // (2 * QB4_BYTES), QB4_BYTES, 2)
    return side_by_side(pairs[..., 0] | (pairs[..., 1] << 4))


def widened(packed: Tensor, scales: Tensor) -> Tensor:
    """Return the dequantized matrix of `quantize_int4`, float32 [out, in]."""
    groups = len(packed)
    halves = torch.stack((packed & 15, packed >> 4), dim=-1)
    values = halves.transpose(1, 2).reshape(groups * QB4_ROWS, -1, QB4_BLOCK)
    steps = scales.transpose(1, 2).reshape(groups * QB4_ROWS, -1, 1)
    return values.float().sub_(8).mul_(steps.float()).view(len(values), -1)


def _in_order(weight: Tensor, signed: bool, factor: Factor) -> tuple[Tensor, Tensor]:
    """Return values, float32 [out, in], and scales, float32 [out, in / 32].

    Columns are rounded in order, and their errors are compensated in later columns.
    """
    left = weight.mT.contiguous()  # [in, out]: the columns not yet rounded
    values, scales = torch.empty_like(left), list[Tensor]()
    error = left.new_empty(QB4_BLOCK, len(weight))
    for begin in range(0, len(left), QB4_BLOCK):
        end = begin + QB4_BLOCK
        upper = factor.upper[begin:end]
        here = left[begin:end]
        importance = factor.importance[begin:end]
        scale = _best_scale(here.mT.contiguous(), signed, importance)[:, 0]
        for at in range(QB4_BLOCK):
            rounded = _rounded(here[at], scale, values[begin + at])
            torch.sub(here[at], rounded * scale, out=error[at])
            error[at] /= upper[at, begin + at]
            here[at + 1 :].addr_(upper[at, begin + at + 1 : end], error[at], alpha=-1)
        left[end:].addmm_(upper[:, end:].mT, error, alpha=-1)
        scales.append(scale)
    return values.mT.contiguous(), torch.stack(scales, dim=1)


def side_by_side(rows: Tensor) -> Tensor:
    """Interleave groups of eight rows: [out, n, ...] to [out / 8, n, 8, ...]."""
    return (
        rows.view(len(rows) // QB4_ROWS, QB4_ROWS, *rows.shape[1:])
        .transpose(1, 2)
        .contiguous()
    )


def _best_scale(blocks: Tensor, signed: bool, importance: Tensor | None) -> Tensor:
    """Return each block's scale with the least squared error, float32 [blocks, 1].

    The least is among the scales that are tried. Values are in units of their block's
    extreme, so that their squares do not overflow or underflow in float32.

    Args:
        blocks: float32 [blocks, 32].
        signed: whether a scale may be negative.
        importance: float32 [32], the weight of each value's squared error; None for
            equal weights.
    """
    low, high = blocks.aminmax(dim=1, keepdim=True)
    unit = torch.maximum(high, -low)
    if signed:  # the extreme becomes -1
        unit = torch.where(high >= -low, -unit, unit)
    shares = blocks / unit.masked_fill(unit == 0, 1)
    counts = 1.0 if importance is None else importance / importance.amax()
    counted = shares * counts
    best, least = torch.ones_like(unit), torch.full_like(unit, torch.inf)
    for end in _ENDS:
        values = _rounded(shares, _stored(unit / end) / unit)
        fitting = (values * counted).sum(1, keepdim=True)
        fitting /= (values.square() * counts).sum(1, keepdim=True)
        scale = _stored(fitting * unit)
        step = scale / unit
        errors = _rounded(shares, step, values).mul_(step).sub_(shares).square_()
        error = errors.mul_(counts).sum(1, keepdim=True)
        better = error < least
        best = torch.where(better, scale, best)
        least = torch.where(better, error, least)
    return best


def _stored(scale: Tensor) -> Tensor:
    """Round scales to bfloat16; a scale that is not normal becomes 1."""
    stored = scale.to(torch.bfloat16).float()
    return stored.masked_fill_(~(stored.abs() >= _LEAST_SCALE), 1)


def _rounded(values: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """Return values divided by their scale, rounded to -8 ... 7, as float32."""
    return torch.div(values, scale, out=out).round_().clamp_(-8, 7)


# `Moments`: statistics of the inputs that a weight multiplies, from samples.


_KEPT: Final = 2  # factors: the inputs of queries and of the weights written next


class Moments:
    """Second moments of a layer's inputs, compared by identity.

    Attributes:
        sums: float32 [in, in], the sum of x x' over all inputs x of the samples.
    """

    __slots__ = ("sums",)

    def __init__(self, sums: npt.NDArray[np.float32]) -> None:
        self.sums = sums


class Factors:
    """A cache of the factors of the last few moments."""

    def __init__(self) -> None:
        self._made: dict[Moments, Factor] = {}

    def of(self, moments: Moments) -> Factor:
        """Return the factor of moments, from the cache if the cache has it."""
        known = self._made.pop(moments, None)
        factor = Factor.of(torch.from_numpy(moments.sums)) if known is None else known
        self._made[moments] = factor
        if len(self._made) > _KEPT:
            del self._made[next(iter(self._made))]
        return factor
