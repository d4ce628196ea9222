"""Other results that torch could have given, where it does not fix the result.

In: the result of an operator, and its arguments. Out: another result that is as right,
drawn at random if there are many. These are open:

- which of several equal values an operator chooses
- which integer stands for a float that no integer of the dtype can represent
- the sign of a sum or bound that is zero
- whether sums with infinities are infinite or NaN, which depends on their order

Some results depend on how many elements a tensor has (torch 2.13): `gelu` of infinity
is infinite for one element and NaN for several; `sinh` and `cosh` become infinite from
88.72 on for several; remainders by denormal numbers are NaN for several.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

Chance = torch.Generator
Another = Callable[..., object]  # of the chance, the result, the arguments

# Operators that choose among equal values as they like: where their axis is among the
# arguments.
CHOOSING: Final[Mapping[str, int]] = {
    "aten::topk": 2,
    "aten::sort": 1,
    "aten::kthvalue": 2,
    "aten::median.dim": 1,
    "aten::nanmedian.dim": 1,
    "aten::mode": 1,
}


def chosen_otherwise(
    func: Callable[..., object], args: Sequence[object], place: int, chance: Chance
) -> object:
    """Run an operator that chooses among equal values, on a tensor in another order.

    Return the values and their places in the original tensor. `place` says which
    argument is the axis.
    """
    tensor, *others = args
    axis = args[place] if len(args) > place else -1
    assert isinstance(tensor, Tensor)
    assert isinstance(axis, int)
    if not tensor.ndim:
        return func(*args)
    order = torch.randperm(tensor.shape[axis], generator=chance)
    values, places = func(tensor.index_select(axis, order), *others)  # type: ignore[misc]  # two tensors
    return values, order[places]


def _copied(chance, made, into, given, *_, **__) -> Tensor:
    return made.copy_(_converted(chance, made, given))


def _converted(chance: Chance, made: Tensor, given: Tensor, *_, **__) -> Tensor:
    """Replace integers made of NaN, or of floats too large for them, by random ones."""
    if made.is_floating_point() or made.is_complex() or made.dtype == torch.bool:
        return made
    if not given.is_floating_point() or given.shape != made.shape:
        return made
    limits = torch.iinfo(made.dtype)
    fits = (given.trunc() >= limits.min) & (given.trunc() <= limits.max)
    some = torch.randint(0, 100, made.shape, generator=chance)
    return torch.where(fits, made, some.to(made.dtype))


def _spaced(chance: Chance, made: Tensor, *_, **__) -> Tensor:
    """Return a range of numbers, such as `linspace` makes, with other rounding errors.

    Fractions differ by up to a rounding step of the largest number. Integers above
    2**53 differ by what a fused multiply-add changes. The least integer, which may
    stand for a number out of range, becomes any.
    """
    if made.is_complex() or not made.numel():
        return made
    if made.is_floating_point():
        most = torch.finfo(made.dtype).eps * made.abs().nan_to_num(posinf=0).amax()
        return made + most * torch.rand(made.shape, generator=chance).to(made.dtype)
    some = torch.randint(0, 2, made.shape, generator=chance)
    least = torch.iinfo(made.dtype).min
    by = torch.where(made.abs() > 2**53, made.abs() >> 52, 0) * (2 * some - 1)
    return torch.where(made == least, some.to(made.dtype), made + by.to(made.dtype))


def _signed(chance: Chance, made: Tensor, *_, **__) -> Tensor:
    """Give zeros of a float tensor random signs, in place; return the tensor."""
    if not made.is_floating_point() or not (made == 0).any():
        return made
    signs = torch.randint(0, 2, made.shape, generator=chance) * 2 - 1
    return made.copy_(torch.where(made == 0, 0.0 * signs.to(made.dtype), made))


def _convolved(chance: Chance, made: Tensor, x: Tensor, weight: Tensor, *_) -> Tensor:
    """Return a convolution in which infinite or NaN weights may meet padding zeros.

    If all weights are finite, only signs of zeros change. Otherwise all results become
    infinite, or all NaN.
    """
    if weight.isfinite().all():
        return _signed(chance, made)
    return _ordered(chance, torch.full_like(made, torch.nan))


def _ordered(chance: Chance, made: Tensor, *_, **__) -> Tensor:
    """Return the result with all its infinities and NaN made infinite, or all NaN.

    Sums of infinities may give either, depending on their order.
    """
    some = torch.rand((), generator=chance)
    return torch.where(made.isfinite(), made, torch.inf if some < 0.5 else torch.nan)


def _transformed(chance, made, x, axes, *_, **__) -> Tensor:
    """Return a Fourier transform with NaN wherever an input of it is not finite."""
    lost = ~x.isfinite()
    for axis in axes:
        lost = lost.any(axis, keepdim=True)
    nan = complex(torch.nan, torch.nan) if made.is_complex() else torch.nan
    return torch.where(lost, nan, made)


def _in_float64(func, chance, made, x) -> Tensor:
    """Return the result computed in float64, whose range is larger."""
    return func(x.double()).to(made.dtype)


def _log_softmax(chance: Chance, made: Tensor, x: Tensor, *_, **__) -> Tensor:
    """Return a log-softmax with other rounding errors, as large as those of x."""
    least = 4 * torch.finfo(made.dtype).eps
    size = x.abs().nan_to_num(posinf=0).amax() if x.numel() else 0
    by = least * (1 + size) * torch.rand(made.shape, generator=chance)
    return made + by.to(made.dtype)


def _remainder(chance: Chance, made: Tensor, x: Tensor, by: Tensor) -> Tensor:
    """Return remainders, those by denormal numbers all NaN or all 0, in place."""
    tiny = (by != 0) & (by.abs() < torch.finfo(torch.float32).tiny)
    other = torch.nan if torch.rand((), generator=chance) < 0.5 else 0.0
    return made.copy_(torch.where(tiny, other, made)) if tiny.any() else made


def _gelu(chance: Chance, made: Tensor, x: Tensor, *_, **__) -> Tensor:
    """Return `gelu` of x with another rounding error, up to that of numbers near 1.

    Of an infinite x it is infinite or NaN.
    """
    by = torch.finfo(made.dtype).eps * torch.rand(made.shape, generator=chance)
    made = made + (by.to(made.dtype) * x).nan_to_num(0, 0, 0)
    return torch.where(x == torch.inf, _ordered(chance, x), made)


def _mean_beside(chance, made, *_, **__) -> tuple[Tensor, ...]:
    """Return results, the second of which is a mean, with other infinities."""
    return made[0], _ordered(chance, made[1]), *made[2:]


def _each(names: str, another: Another, *kinds: str) -> dict[str, Another]:
    return {
        f"aten::{name}{kind}": another
        for name in names.split()
        for kind in kinds or [""]
    }


_ENDS = ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")
OPEN: Final[Mapping[str, Another]] = {
    **_each("_to_copy", _converted),
    **_each("copy_", _copied),
    **_each("relu relu_ clamp clamp_ clamp_min clamp_max maximum minimum", _signed),
    **_each("linspace logspace", _spaced, *_ENDS),
    **_each("mm bmm addmm baddbmm addmv mv addbmm dot vdot", _signed),
    **_each("convolution", _convolved),
    **_each("sum sum.dim_IntList mean mean.dim cumsum", _signed),
    **_each("_trilinear cholesky_inverse cholesky_solve", _ordered),
    **_each("_fft_r2c _fft_c2c _fft_c2r", _transformed),
    **_each("sinh", partial(_in_float64, torch.sinh)),
    **_each("cosh", partial(_in_float64, torch.cosh)),
    **_each("fmod fmod_ remainder remainder_", _remainder, ".Tensor"),
    **_each("_log_softmax", _log_softmax),
    **_each("gelu", _gelu),
    **_each("native_layer_norm native_group_norm", _mean_beside),
    **_each("var_mean std_mean", _mean_beside, ".correction"),
}
