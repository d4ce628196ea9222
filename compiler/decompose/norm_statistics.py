"""Norms that also return the statistics by which they normalize.

In: the arguments of a norm while it is traced. Out: the results of the norm, computed
by operators that kvc has kernels for; or NotImplemented, with which torch keeps the
original call.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import group_norm, layer_norm


def batch_statistics(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """Normalize channels by the statistics of a batch, without running statistics.

    A call with a batch of one is left to torch, which traces a norm of single channels
    as such a call.
    """
    batch: int | torch.SymInt = input.shape[0]
    if isinstance(batch, int) and batch == 1:
        return NotImplemented
    axes, half = [0, *range(2, input.dim())], input.dtype.itemsize == 2
    x = input.float() if half else input
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    factor = (variance + eps).rsqrt()
    made = (x - mean) * factor
    shape = (-1, *[1] * (input.dim() - 2))
    made = made if weight is None else made * weight.reshape(shape)
    made = made if bias is None else made + bias.reshape(shape)
    kind = input.dtype if weight is None else weight.dtype
    return made.to(input.dtype), mean.reshape(-1).to(kind), factor.reshape(-1).to(kind)


def layer_norm_and_statistics(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the last axes; also return the means and the scale factors."""
    made = layer_norm(input, normalized_shape, weight, bias, eps)
    axes = range(input.dim() - len(normalized_shape), input.dim())
    return made, *_statistics(input, [*axes], eps, weight, bias)


def group_norm_and_statistics(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,  # noqa: N803  as torch calls them
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize groups of channels; also return the means and the scale factors."""
    made = group_norm(input, group, weight, bias, eps)
    groups = input.reshape(N, group, C // group * HxW)
    mean, factor = _statistics(groups, [2], eps, weight, bias)
    return made, mean.squeeze(2), factor.squeeze(2)


def _statistics(
    input: Tensor,
    axes: list[int],
    eps: float,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the means and inverse standard deviations of a norm along some axes."""
    x = input.float() if input.dtype.itemsize == 2 else input
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    kind = next(
        (each.dtype for each in (weight, bias) if each is not None), input.dtype
    )
    return mean.to(kind), (variance + eps).rsqrt().to(kind)
