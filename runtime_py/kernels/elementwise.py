"""Kernels of arithmetic, activation, comparison, logic and selection, by element.

In: operands. Out: fresh results. The functions of `torch.nn.functional` do not take
`out=`, but the functions of `torch._C._nn` behind them do. All kernels call functions
that torch binds to Python: calling an overload object of `torch.ops` took twice as long
(multiplying 576 elements on a busy machine, 2026-11).
"""

import torch
from torch import Tensor
from torch._C import _nn

from kvc.runtime.kernels.kernel import Kernel, copied, into

Number = int | float | bool


def _add(out: Tensor, x: Tensor, other: Tensor | Number, alpha: Number) -> None:
    torch.add(x, other, alpha=alpha, out=out)


def _after(out: Tensor, start: Tensor, count: int) -> None:
    torch.add(start, count, out=out)


def _sub(out: Tensor, x: Tensor, other: Tensor | Number, alpha: Number) -> None:
    torch.sub(x, other, alpha=alpha, out=out)


def _rsub(out: Tensor, x: Tensor, other: Number, alpha: Number) -> None:
    # No out=; a tensor made from `other` would promote dtypes differently than a
    # number.
    out.copy_(torch.rsub(x, other, alpha=alpha))


def _div_mode(
    out: Tensor, x: Tensor, other: Tensor | Number, rounding_mode: str | None
) -> None:
    torch.div(x, other, rounding_mode=rounding_mode, out=out)


def _isnan(out: Tensor, x: Tensor) -> None:
    torch.ne(x, x, out=out)


def _round_decimals(out: Tensor, x: Tensor, decimals: int) -> None:
    torch.round(x, decimals=decimals, out=out)


def _gelu(out: Tensor, x: Tensor, approximate: str) -> None:
    _nn.gelu(x, approximate=approximate, out=out)  # type: ignore[call-arg]


def _relu(out: Tensor, x: Tensor) -> None:
    torch.clamp_min(x, 0, out=out)


def _masked_fill(out: Tensor, x: Tensor, mask: Tensor, value: Tensor | Number) -> None:
    others = (mask, value) if isinstance(value, Tensor) else (mask,)
    if any(out.data_ptr() == other.data_ptr() for other in others):
        out.copy_(torch.masked_fill(x, mask, value))
        return
    out.copy_(x)
    out.masked_fill_(mask, value)


def _copy(out: Tensor, x: Tensor, *_: torch.dtype) -> None:
    out.copy_(x)


_sums: dict[str, Kernel] = {
    "aten::add.Tensor": _add,
    "aten::add.Scalar": _add,
    "kvc::after": _after,
    "aten::sub.Tensor": _sub,
    "aten::sub.Scalar": _sub,
    "aten::rsub.Scalar": _rsub,
}

_unary: dict[str, Kernel] = {
    "aten::abs": into(torch.abs),
    "aten::acos": into(torch.acos),
    "aten::acosh": into(torch.acosh),
    "aten::asin": into(torch.asin),
    "aten::asinh": into(torch.asinh),
    "aten::atan": into(torch.atan),
    "aten::atanh": into(torch.atanh),
    "aten::bitwise_not": into(torch.bitwise_not),
    "aten::ceil": into(torch.ceil),
    "aten::cos": into(torch.cos),
    "aten::cosh": into(torch.cosh),
    "aten::digamma": into(torch.digamma),
    "aten::erf": into(torch.erf),
    "aten::erfc": into(torch.erfc),
    "aten::erfinv": into(torch.erfinv),
    "aten::exp": into(torch.exp),
    "aten::exp2": into(torch.exp2),
    "aten::expm1": into(torch.expm1),
    "aten::floor": into(torch.floor),
    "aten::i0": into(torch.i0),
    "aten::isinf": copied(torch.isinf),
    "aten::isnan": _isnan,
    "aten::lgamma": into(torch.lgamma),
    "aten::log": into(torch.log),
    "aten::log10": into(torch.log10),
    "aten::log1p": into(torch.log1p),
    "aten::log2": into(torch.log2),
    "aten::logical_not": into(torch.logical_not),
    "aten::neg": into(torch.neg),
    "aten::polygamma": into(torch.polygamma),
    "aten::reciprocal": into(torch.reciprocal),
    "aten::round": into(torch.round),
    "aten::round.decimals": _round_decimals,
    "aten::rsqrt": into(torch.rsqrt),
    "aten::sign": into(torch.sign),
    "aten::signbit": into(torch.signbit),
    "aten::sin": into(torch.sin),
    "aten::sinh": into(torch.sinh),
    "aten::special_airy_ai": into(torch.special.airy_ai),
    "aten::special_bessel_j0": into(torch.special.bessel_j0),
    "aten::special_bessel_j1": into(torch.special.bessel_j1),
    "aten::special_bessel_y0": into(torch.special.bessel_y0),
    "aten::special_bessel_y1": into(torch.special.bessel_y1),
    "aten::special_erfcx": into(torch.special.erfcx),
    "aten::special_i0e": into(torch.special.i0e),
    "aten::special_i1": into(torch.special.i1),
    "aten::special_i1e": into(torch.special.i1e),
    "aten::special_modified_bessel_i0": into(torch.special.modified_bessel_i0),
    "aten::special_modified_bessel_i1": into(torch.special.modified_bessel_i1),
    "aten::special_modified_bessel_k0": into(torch.special.modified_bessel_k0),
    "aten::special_modified_bessel_k1": into(torch.special.modified_bessel_k1),
    "aten::special_ndtri": into(torch.special.ndtri),
    "aten::special_scaled_modified_bessel_k0": into(
        torch.special.scaled_modified_bessel_k0
    ),
    "aten::special_scaled_modified_bessel_k1": into(
        torch.special.scaled_modified_bessel_k1
    ),
    "aten::special_spherical_bessel_j0": into(torch.special.spherical_bessel_j0),
    "aten::sqrt": into(torch.sqrt),
    "aten::tan": into(torch.tan),
    "aten::trunc": into(torch.trunc),
}

_binary: dict[str, Kernel] = {
    "aten::atan2": into(torch.atan2),
    "aten::bitwise_and.Scalar": into(torch.bitwise_and),
    "aten::bitwise_and.Tensor": into(torch.bitwise_and),
    "aten::bitwise_left_shift.Tensor": into(torch.bitwise_left_shift),
    "aten::bitwise_or.Scalar": into(torch.bitwise_or),
    "aten::bitwise_or.Tensor": into(torch.bitwise_or),
    "aten::bitwise_right_shift.Tensor": into(torch.bitwise_right_shift),
    "aten::bitwise_xor.Scalar": into(torch.bitwise_xor),
    "aten::bitwise_xor.Tensor": into(torch.bitwise_xor),
    "aten::copysign.Scalar": into(torch.copysign),
    "aten::copysign.Tensor": into(torch.copysign),
    "aten::div.Scalar": into(torch.div),
    "aten::div.Scalar_mode": _div_mode,
    "aten::div.Tensor": into(torch.div),
    "aten::div.Tensor_mode": _div_mode,
    "aten::floor_divide": into(torch.floor_divide),
    "aten::fmax": into(torch.fmax),
    "aten::fmin": into(torch.fmin),
    "aten::fmod.Scalar": into(torch.fmod),
    "aten::fmod.Tensor": into(torch.fmod),
    "aten::gcd": into(torch.gcd),
    "aten::hypot": into(torch.hypot),
    "aten::igamma": into(torch.igamma),
    "aten::igammac": into(torch.igammac),
    "aten::lcm": into(torch.lcm),
    "aten::ldexp.Tensor": into(torch.ldexp),
    "aten::logical_and": into(torch.logical_and),
    "aten::logical_or": into(torch.logical_or),
    "aten::logical_xor": into(torch.logical_xor),
    "aten::maximum": into(torch.maximum),
    "aten::minimum": into(torch.minimum),
    "aten::mul.Scalar": into(torch.mul),
    "aten::mul.Tensor": into(torch.mul),
    "aten::nextafter": into(torch.nextafter),
    "aten::pow.Scalar": into(torch.pow),
    "aten::pow.Tensor_Scalar": into(torch.pow),
    "aten::pow.Tensor_Tensor": into(torch.pow),
    "aten::remainder.Scalar": into(torch.remainder),
    "aten::remainder.Tensor": into(torch.remainder),
    "aten::special_zeta": into(torch.special.zeta),
}

_comparison: dict[str, Kernel] = {
    "aten::eq.Scalar": into(torch.eq),
    "aten::eq.Tensor": into(torch.eq),
    "aten::ge.Scalar": into(torch.ge),
    "aten::ge.Tensor": into(torch.ge),
    "aten::gt.Scalar": into(torch.gt),
    "aten::gt.Tensor": into(torch.gt),
    "aten::le.Scalar": into(torch.le),
    "aten::le.Tensor": into(torch.le),
    "aten::lt.Scalar": into(torch.lt),
    "aten::lt.Tensor": into(torch.lt),
    "aten::ne.Scalar": into(torch.ne),
    "aten::ne.Tensor": into(torch.ne),
}

_activation: dict[str, Kernel] = {
    "aten::elu": into(_nn.elu),
    "aten::gelu": _gelu,
    "aten::hardtanh": into(_nn.hardtanh),
    "aten::leaky_relu": into(_nn.leaky_relu),
    "aten::relu": _relu,
    "aten::sigmoid": into(torch.sigmoid),
    "aten::silu": into(_nn.silu),
    "aten::softplus": into(_nn.softplus),
    "aten::tanh": into(torch.tanh),
}

_selection: dict[str, Kernel] = {
    "aten::_to_copy": _copy,
    "aten::clamp": into(torch.clamp),
    "aten::clamp.Tensor": into(torch.clamp),
    "aten::clone": _copy,
    "aten::masked_fill.Scalar": _masked_fill,
    "aten::masked_fill.Tensor": _masked_fill,
    "aten::where.self": into(torch.where),
}

KERNELS: dict[str, Kernel] = {
    **_unary,
    **_binary,
    **_sums,
    **_comparison,
    **_activation,
    **_selection,
}
