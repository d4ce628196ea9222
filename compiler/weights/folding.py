"""Fold a batch norm into the convolution before it.

With s = weight / sqrt(var + eps), the norm of a convolution is the convolution with
kernels times s, and with the bias (bias - mean) * s + the norm's bias. Both are
computed in float64. Each class of this module is the `Make` of a `Computed` source.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class FoldedKernel:
    """The kernels of a convolution times the factors of a norm.

    Called with the kernels [out, in, ...], the variances [out] and, if `weighted`, the
    norm's weights [out].

    Attributes:
        eps: what the norm adds to variances.
        weighted: whether the norm has weights.
    """

    eps: float
    weighted: bool
    by_rows: bool = False

    def __call__(self, first: Tensor, /, *rest: Tensor) -> Tensor:
        """Return the kernels, float32 [out, in, ...]."""
        scale = _scale(self.eps, rest[0], rest[1] if self.weighted else None)
        shape = (-1, *[1] * (first.dim() - 1))
        return (first.double() * scale.reshape(shape)).float()


@dataclass(frozen=True, slots=True)
class FoldedBias:
    """The bias of a convolution after its norm.

    Called with the variances [out] and the means [out], then, if there are any, the
    norm's weights, the norm's bias and the convolution's bias, each [out].

    Attributes:
        eps: what the norm adds to variances.
        weighted, shifted: whether the norm has weights, and a bias.
        biased: whether the convolution has a bias.
    """

    eps: float
    weighted: bool
    shifted: bool
    biased: bool
    by_rows: bool = False

    def __call__(self, first: Tensor, /, *rest: Tensor) -> Tensor:
        """Return the bias, float32 [out]."""
        left = list(rest)
        mean = left.pop(0).double()
        weight = left.pop(0) if self.weighted else None
        shift = left.pop(0).double() if self.shifted else 0
        bias = left.pop(0).double() if self.biased else 0
        made: Tensor = (bias - mean) * _scale(self.eps, first, weight) + shift
        return made.float()


def _scale(eps: float, var: Tensor, weight: Tensor | None) -> Tensor:
    root = torch.sqrt(var.double() + eps)
    return 1 / root if weight is None else weight.double() / root
