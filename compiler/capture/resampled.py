"""Linear interpolation along one axis or three, by the weights that torch has.

In: a call of `torch.nn.functional.interpolate` while it is traced. Out: its result, in
which each number is the weighted sum of two neighbours along each axis; None, which
leaves the call, where a size is dynamic. torch's own decomposition adds a part of the
neighbours' difference, which is no number where both are infinite.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Size = int | torch.SymInt
Setting = TypeVar("Setting")
_AXES: Final = {"linear": 1, "trilinear": 3}


def interpolate(
    x: Tensor,
    size: Size | Sequence[Size] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor | None:
    """Resize x [batch, channels, ...] to a size, or by a factor; one is given."""
    axes = _AXES.get(mode)
    if x.dim() - 2 != axes or antialias or (size is None) is (scale_factor is None):
        return None
    factors = _each(scale_factor, axes)
    sizes = _each(size, axes)
    if sizes is None and factors is not None:
        lengths: Sequence[Size] = x.shape[2:]
        pairs = zip(lengths, factors, strict=False)
        sizes = [int(n * by) if isinstance(n, int) else n for n, by in pairs]
        factors = None if recompute_scale_factor else factors
    if sizes is None or len(sizes) != axes:
        return None
    return _resized(x, sizes, bool(align_corners), factors or [None] * axes)


def _each(given: Setting | Sequence[Setting] | None, axes: int) -> list[Setting] | None:
    """Return a setting for each axis, None where there is none."""
    if given is None:
        return None
    return list(given) if isinstance(given, list | tuple) else [given] * axes  # type: ignore[list-item]  # one setting


def _resized(
    x: Tensor,
    sizes: Sequence[Size],
    align_corners: bool,
    scales: Sequence[float | None],
) -> Tensor | None:
    """Resize the last axes, the last one first; None if a size is dynamic."""
    lengths: Sequence[Size] = x.shape[2:]
    fixed = all(isinstance(size, int) for size in (*lengths, *sizes))
    if not fixed or not x.is_floating_point():
        return None
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    made = x.to(kind)
    for axis in reversed(range(len(lengths))):
        length, size = int(lengths[axis]), int(sizes[axis])
        step = _step(length, size, align_corners, scales[axis], kind)
        places, weights = _neighbours(length, size, align_corners, step)
        shape = (size, *[1] * (len(lengths) - 1 - axis))
        low, high = (
            made.index_select(axis + 2, torch.from_numpy(place))
            * torch.from_numpy(weight).reshape(shape)
            for place, weight in zip(places, weights, strict=True)
        )
        made = low + high
    return made.to(x.dtype)


def _step(
    length: int, size: int, align_corners: bool, scale: float | None, kind: torch.dtype
) -> "np.floating[np.typing.NBitBase]":
    """Return how far apart in the given axis two neighbours of the result lie."""
    number = np.float64 if kind is torch.float64 else np.float32
    if align_corners:
        return number(length - 1) / number(size - 1) if size > 1 else number(0)
    return number(1 / scale) if scale else number(length) / number(size)


def _neighbours(
    length: int,
    size: int,
    align_corners: bool,
    step: "np.floating[np.typing.NBitBase]",
) -> tuple[Sequence[NDArray[np.int64]], Sequence[NDArray[np.generic]]]:
    """Return for each place of the result two of the given axis, and their weights."""
    kind = step.dtype.type
    count = np.arange(size)
    if length == size:
        return (count, count), (np.ones(size, kind), np.zeros(size, kind))
    place = count.astype(kind)
    if not align_corners:
        place = np.maximum(step * (place + kind(0.5)) - kind(0.5), kind(0))
    else:
        place = step * place
    low = np.minimum(place.astype(np.int64), length - 1)
    high = np.minimum(low + 1, length - 1)
    part = np.clip(place - low.astype(kind), kind(0), kind(1))
    return (low, high), (kind(1) - part, part)
