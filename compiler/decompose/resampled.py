"""Linear interpolation along one axis or three axes, by torch's weights.

In: a call of `torch.nn.functional.interpolate` while it is traced. Out: the result of
the call, in which each number is the weighted sum of two neighbors along each axis. If
a size is dynamic, the result is None, which keeps the call. torch's own decomposition
adds to one neighbor a part of its difference to the other neighbor, and this difference
is NaN if both neighbors are infinite.
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
    """Resize x [batch, channels, ...] either to a size or by a factor."""
    axes = x.dim() - 2
    one_given = (size is None) is not (scale_factor is None)
    if _AXES.get(mode) != axes or antialias or not one_given:
        return None
    factors: list[float] | None = _each(scale_factor, axes)
    sizes: list[Size] | None = _each(size, axes)
    if len(factors or sizes or ()) != axes:
        return None
    if factors is not None:
        lengths: Sequence[Size] = x.shape[2:]
        pairs = zip(lengths, factors, strict=True)
        sizes = [int(n * by) if isinstance(n, int) else n for n, by in pairs]
    assert sizes is not None, "one of both is given"
    nothing: list[float | None] = [None] * axes
    scales = nothing if factors is None or recompute_scale_factor else factors
    return _resized(x, sizes, bool(align_corners), scales)


def _each(given: Setting | Sequence[Setting] | None, axes: int) -> list[Setting] | None:
    """Return one setting for each axis; None if no setting is given."""
    if given is None:
        return None
    return list(given) if isinstance(given, list | tuple) else [given] * axes  # type: ignore[list-item]  # one setting


def _resized(
    x: Tensor,
    sizes: Sequence[Size],
    align_corners: bool,
    scales: Sequence[float | None],
) -> Tensor | None:
    """Resize the axes after the first two, the last axis first.

    The result is None if a size is dynamic or 0.
    """
    lengths: Sequence[Size] = x.shape[2:]
    each = (*lengths, *sizes)
    fixed = all(isinstance(size, int) and size > 0 for size in each)
    if not fixed or not x.is_floating_point():
        return None
    kind = "float64" if x.dtype is torch.float64 else "float32"
    made = x.to(getattr(torch, kind))
    for axis in reversed(range(len(lengths))):
        length, size = int(lengths[axis]), int(sizes[axis])
        step = _step(length, size, align_corners, scales[axis], kind)
        places, weights = _neighbours(length, size, align_corners, step, kind)
        shape = (size, *[1] * (len(lengths) - 1 - axis))
        low, high = (
            made.index_select(axis + 2, torch.from_numpy(place))
            * torch.from_numpy(weight).reshape(shape)
            for place, weight in zip(places, weights, strict=True)
        )
        made = low + high
    return made.to(x.dtype)


def _step(
    length: int, size: int, align_corners: bool, scale: float | None, kind: str
) -> float:
    """Return the distance in the input axis between neighbors in the result."""
    if align_corners:
        parts = (length - 1, size - 1) if size > 1 else (0, 1)
    else:
        parts = (length, size)
    whole, count = np.array(parts, kind)
    if scale and not align_corners:
        return float(np.array(1 / scale, kind))
    return float(whole / count)


def _neighbours(
    length: int, size: int, align_corners: bool, step: float, kind: str
) -> tuple[Sequence[NDArray[np.int64]], Sequence[NDArray[np.float64]]]:
    """For each position of the result, return two input positions and two weights.

    The result is a pair: the two arrays of positions, and the two arrays of weights.
    Weights are computed and rounded in the dtype `kind`, as torch does.
    """
    count = np.arange(size)
    if length == size:
        return (count, count), (np.ones(size, kind), np.zeros(size, kind))
    place: NDArray[np.float64] = count.astype(kind)
    shift = 0 if align_corners else 0.5
    place = np.maximum((place + shift) * step - shift, 0)
    low = np.minimum(place.astype(np.int64), length - 1)
    high = np.minimum(low + 1, length - 1)
    part = np.clip(place - low.astype(kind), 0, 1)
    return (low, high), (1 - part, part)
