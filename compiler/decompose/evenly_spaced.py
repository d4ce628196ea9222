"""Numbers at equal distances, as torch's kernels compute them.

In: a call of `linspace` while it is traced. Out: the same numbers by operators that kvc
has. torch's own decomposition (2.13) takes fractions for the ends of integers, which
its kernel cuts off first. That kernel multiplies and adds at once, which is rounded
once, wherever the processor can: a number just below an integer would become another.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_aten = torch.ops.aten
_CPU = torch.device("cpu")
_HALF = 2.0**27 + 1  # times a number: that, less that number, has its first 26 digits


def _evenly_spaced(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    **_: object,
) -> Tensor:
    """Go from one integer to another where integers are asked for."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        made: Tensor = torch._refs.linspace(start, end, steps, dtype=dtype, device=_CPU)
        return made
    first, last = (_whole(each, dtype) for each in (start, end))
    step = (last - first) / max(steps - 1, 1)
    place = torch.arange(steps, dtype=torch.float64)
    rising = _fused(step, place, first)
    falling = _fused(-step, steps - 1 - place, last)
    half = steps // 2 if steps > 1 else 1
    return torch.where(place < half, rising, falling).to(dtype)


def _fused(step: float | Tensor, place: Tensor, start: float | Tensor) -> Tensor:
    """Return start + step * place, rounded once.

    A step is the sum of two numbers of few digits, whose products are exact (Dekker
    1971); `lost` is what the first sum rounds away (Knuth, TwoSum).
    """
    large = step * _HALF
    upper = large - (large - step)
    product, rest = upper * place, (step - upper) * place
    made = start + product
    given = made - start
    lost = (start - (made - given)) + (product - given)
    return made + (lost + rest)


def _whole(number: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """Cut off what follows the point, and return it as a float of 64 bits."""
    if isinstance(number, Tensor):
        return number.to(dtype).to(torch.float64)
    return float(int(number))


SPACED: Mapping[torch._ops.OperatorBase, Callable[..., object]] = {
    _aten.linspace.default: _evenly_spaced,
    _aten.linspace.Tensor_Tensor: _evenly_spaced,
    _aten.linspace.Tensor_Scalar: _evenly_spaced,
    _aten.linspace.Scalar_Tensor: _evenly_spaced,
}
