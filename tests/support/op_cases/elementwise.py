"""Cases of ops that work element by element."""

import math

import torch

from op_cases.case import Case, rand

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I8, I16, I32, I64 = torch.int8, torch.int16, torch.int32, torch.int64
U8, BOOL = torch.uint8, torch.bool
FLOATS = (F16, BF16, F32, F64)

_ODD = torch.tensor(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, 1.5, 2.5, -2.5, 90.0]
)

_MATH = (
    "abs ceil cos erf exp expm1 floor isinf isnan log log1p log2 logical_not neg "
    "reciprocal relu round rsqrt sigmoid sign silu sin sqrt tanh trunc"
)
_ARCS = "acos acosh asin asinh atan atanh cosh sinh tan"
_SPECIAL = "digamma erfc erfinv exp2 i0 lgamma log10 signbit"
_RARE = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx i0e i1 i1e "
    "modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri "
    "scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"
)
_WHOLE = "abs ceil exp floor isinf isnan logical_not neg relu round sign sqrt trunc"

UNARY = (
    *(
        Case(f"aten::{op}", (rand(3, 37, dtype=d),))
        for op in _MATH.split()
        for d in FLOATS
    ),
    *(Case(f"aten::{op}", (_ODD,)) for op in _MATH.split()),
    *(Case(f"aten::{op}", (rand(),)) for op in _MATH.split()),
    *(Case(f"aten::{op}", (rand(0, 4),)) for op in _MATH.split()),
    *(Case(f"aten::{op}", (rand(2, 3, dtype=I32),)) for op in _WHOLE.split()),
    *(Case("aten::bitwise_not", (rand(2, 3, dtype=d),)) for d in (BOOL, I8, U8, I64)),
    Case("aten::logical_not", (rand(5, dtype=BOOL),)),
    *(
        Case(f"aten::{op}", (x,))
        for op in (*_ARCS.split(), *_SPECIAL.split())
        for x in (
            rand(3, 37),
            rand(5, dtype=F64),
            _ODD,
            rand(0, 4),
            rand(2, 3, dtype=I32),
        )
    ),
    *(
        Case(f"aten::special_{op}", (x,))
        for op in _RARE.split()
        for x in (rand(3, 5), rand(5, dtype=F64), _ODD, rand(2, 3, dtype=I32))
    ),
    *(Case("aten::polygamma", (n, rand(3, 5).abs())) for n in (0, 1, 3)),
    *(
        Case("aten::round.decimals", (x, decimals))
        for x, decimals in ((rand(3, 4), 2), (rand(4) * 1000, -2), (_ODD, 1))
    ),
)

_ARITHMETIC = (
    "div.Tensor maximum minimum mul.Tensor remainder.Tensor floor_divide fmod.Tensor"
)
_LOGIC = ["logical_and", "logical_or", "logical_xor"]
_BITS = ["bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"]
_COMPARE = ["eq", "ge", "gt", "le", "lt", "ne"]
_PAIRS = (
    (rand(3, 17), rand(3, 17)),
    (rand(2, 3, 5, dtype=BF16), rand(3, 1, dtype=BF16)),
    (rand(4, 1, dtype=F16), rand(1, 5, dtype=F16)),
    (rand(4), rand(4, dtype=F64)),
    (rand(4, dtype=BF16), rand(4)),
    (rand(4, dtype=I64), rand()),
    (rand(), rand()),
    (rand(0, 3), rand(1, 3)),
    (rand(6), rand(6, dtype=I32)),
    (rand(6, dtype=I8), rand(6, dtype=I64).abs() + 1),
)
_WHOLE_PAIRS = (
    (rand(3, 4, dtype=BOOL), rand(4, dtype=BOOL)),
    (rand(3, 4, dtype=I32), rand(3, 1, dtype=I64)),
    (rand(3, dtype=U8), rand(3, dtype=U8)),
)

BINARY = (
    *(
        Case(f"aten::{op}", pair)
        for op in (*_ARITHMETIC.split(), *_LOGIC)
        for pair in _PAIRS
    ),
    *(Case(f"aten::{op}", pair) for op in (*_BITS, *_LOGIC) for pair in _WHOLE_PAIRS),
    *(
        Case(f"aten::bitwise_{op}.Scalar", (x, value))
        for op in ("and", "or", "xor")
        for x, value in (
            (rand(3, 4, dtype=I32), 3),
            (rand(5, dtype=U8), 6),
            (rand(5, dtype=BOOL), True),
            (rand(5, dtype=BOOL), 3),
            (rand(dtype=I64), -2),
        )
    ),
    *(Case(f"aten::{op}.Tensor", pair) for op in _COMPARE for pair in _PAIRS),
    *(
        Case(f"aten::{op}.Tensor", pair)
        for op in ("eq", "lt")
        for pair in (
            (rand(3, 5, dtype=I64), rand(5, dtype=F32)),
            (rand(3, 5, dtype=U8), rand(5, dtype=I8)),
            (rand(3, 5, dtype=BOOL), rand(5, dtype=I32)),
            (rand(3), torch.tensor(0.1, dtype=F64)),
            (torch.tensor([0.1], dtype=F64), torch.tensor(0.1)),
            (rand(3, dtype=I32), torch.tensor(0.1, dtype=F64)),
            (rand(3, dtype=I32), torch.tensor(2**40 + 1)),
        )
    ),
    *(
        Case(f"aten::{op}.Scalar", (rand(9, dtype=d), number))
        for op in ("eq", "lt")
        for d, number in ((I64, 0.5), (I8, 1.0), (BOOL, -1), (BOOL, 0.5), (BOOL, True))
    ),
    Case("aten::logical_and", (rand(9, dtype=BOOL), rand(9, dtype=F32))),
    Case("aten::logical_xor", (rand(9, dtype=I64), rand(9, dtype=BOOL))),
    *(
        Case(f"aten::{op}.Scalar", (x, value))
        for op in _COMPARE
        for x, value in ((rand(3, 4), 0.1), (rand(5, dtype=I32), 1), (rand(), 0))
    ),
    *(
        Case(f"aten::{op}.Scalar", (x, value))
        for op in ("div", "fmod", "mul", "remainder")
        for x, value in (
            (rand(3, 4), 3),
            (rand(3, dtype=BF16), 0.3),
            (rand(3, dtype=F16), 0.3),
            (rand(4, dtype=I32), 3),
            (rand(4, dtype=I64), 2.5),
            (rand(0), 2),
        )
    ),
    *(
        Case(f"aten::{op}.Tensor", (*pair, alpha))
        for op in ("add", "sub")
        for pair in _PAIRS
        for alpha in (1, 2)
    ),
    *(
        Case(f"aten::{op}.Scalar", (x, value, alpha))
        for op in ("add", "sub", "rsub")
        for x, value, alpha in (
            (rand(3, 4), 0.3, 1),
            (rand(3, 4), 2, 3),
            (rand(7, dtype=BF16), 0.3, 0.7),
            (rand(7, dtype=F16), 0.3, 1),
            (rand(4, dtype=I32), 2, 3),
            (rand(4, dtype=I64), 0.5, 1),
        )
    ),
    Case("aten::add.Tensor", (rand(4, dtype=BOOL), rand(4, dtype=I32), 1)),
    *(
        Case(f"aten::div.{kind}_mode", (x, other, mode))
        for kind, x, other in (
            ("Tensor", rand(3, 5), rand(5)),
            ("Tensor", rand(4, dtype=I32), rand(4, dtype=I32).abs() + 1),
            ("Scalar", rand(3, 5), 0.7),
            ("Scalar", rand(5, dtype=I64), -3),
        )
        for mode in (None, "floor", "trunc")
    ),
    Case("aten::atan2", (rand(3, 5), rand(5))),
    *(
        Case(f"aten::{op}", (rand(3, 5).abs(), rand(5).abs()))
        for op in ("igamma", "igammac", "nextafter", "special_zeta")
    ),
    *(
        Case(f"aten::{op}", (rand(3, 5, dtype=d), rand(5, dtype=I64)))
        for op in ("gcd", "lcm")
        for d in (I32, I64)
    ),
    *(
        Case(f"aten::{op}", (x, y))
        for op in ("copysign.Tensor", "fmax", "fmin", "hypot", "ldexp.Tensor")
        for x, y in ((rand(3, 5), rand(5)), (_ODD, _ODD.flip(0)))
    ),
    *(
        Case(f"aten::bitwise_{side}_shift.Tensor", (x, y))
        for side in ("left", "right")
        for x, y in (
            (rand(3, 5, dtype=I32), rand(5, dtype=I32).abs()),
            (rand(5, dtype=I64), torch.tensor(3)),
        )
    ),
    *(Case("aten::copysign.Scalar", (_ODD, value)) for value in (-1.0, 2, -0.0)),
    Case("aten::atan2", (rand(3, dtype=BF16), rand(3, dtype=BF16))),
    Case("aten::pow.Tensor_Tensor", (rand(3, 5).abs(), rand(5))),
    Case("aten::pow.Tensor_Tensor", (rand(4, dtype=I32), rand(4, dtype=U8))),
    *(
        Case("aten::pow.Tensor_Scalar", (rand(3, 5, dtype=d).abs(), exponent))
        for d in (F32, BF16, F64)
        for exponent in (2, 3, -1, 0.5, -0.5, 2.3, 0)
    ),
    Case("aten::pow.Tensor_Scalar", (rand(5, dtype=I64), 3)),
    Case("aten::pow.Scalar", (2, rand(3, 4))),
    Case("aten::pow.Scalar", (10000.0, rand(3, dtype=BF16))),
    Case("aten::pow.Scalar", (1, rand(3))),
    Case("aten::pow.Scalar", (0.5, rand(4, dtype=I32))),
)

ACTIVATION = (
    *(
        Case("aten::gelu", (rand(3, 19, dtype=d), approximate))
        for d in (F32, BF16)
        for approximate in ("none", "tanh")
    ),
    *(Case("aten::hardtanh", (rand(3, 5, dtype=d), -0.5, 1)) for d in FLOATS),
    *(Case("aten::leaky_relu", (rand(3, 5, dtype=d), 0.1)) for d in FLOATS),
    *(Case("aten::elu", (rand(3, 5, dtype=d), 1.3, 1.1, 0.9)) for d in FLOATS),
    *(Case("aten::softplus", (rand(3, 5, dtype=d), 1.5, 2)) for d in FLOATS),
    # Of infinity torch makes NaN where its loop over several elements runs.
    Case("aten::gelu", (_ODD[math.inf != _ODD], "none")),
    Case("aten::hardtanh", (_ODD, -1.0, 1.0)),
)

_MASK = rand(3, 4, dtype=BOOL)
SELECTION = (
    Case("aten::clamp", (rand(3, 5), -0.5, 0.5)),
    Case("aten::clamp", (_ODD, None, 0.5)),
    Case("aten::clamp", (rand(4, dtype=BF16), 0, None)),
    Case("aten::clamp", (rand(4, dtype=I32), 0, 3)),
    Case("aten::clamp", (rand(4, dtype=I32), 0.5, None)),
    Case("aten::clamp.Tensor", (rand(3, 5), rand(5), rand(3, 1))),
    Case("aten::clamp.Tensor", (rand(5), None, rand(3, 1))),
    Case("aten::clamp.Tensor", (rand(3, 5, dtype=BOOL), rand(5, dtype=BOOL), None)),
    Case("aten::clamp.Tensor", (rand(3, 5), rand(), None)),
    Case("aten::where.self", (_MASK, rand(3, 4), rand(4))),
    Case("aten::where.self", (_MASK, rand(3, 4, dtype=I32), rand())),
    Case("aten::where.self", (rand(4, dtype=BOOL), rand(2, 1, dtype=BF16), rand(4))),
    Case("aten::where.self", (_MASK, rand(3, 4, dtype=I64), rand(4, dtype=F64))),
    Case("aten::where.self", (_MASK, rand(4, dtype=BOOL), rand(3, 4, dtype=I32))),
    Case("aten::masked_fill.Scalar", (rand(3, 4), _MASK, -math.inf)),
    Case("aten::masked_fill.Scalar", (rand(2, 3, 4, dtype=BF16), _MASK, 0.1)),
    Case("aten::masked_fill.Scalar", (rand(3, 4, dtype=I32), rand(4, dtype=BOOL), 7)),
    Case("aten::masked_fill.Tensor", (rand(3, 4), _MASK, rand())),
    Case("aten::clone", (rand(3, 4, dtype=BF16),)),
    Case("aten::clone", (rand(),)),
    *(
        Case("aten::_to_copy", (rand(3, 4, dtype=source), target))
        for source in (F32, BF16, F16, F64, I8, I32, I64, BOOL)
        for target in (F32, BF16, F16, F64, I8, I16, I32, I64, BOOL)
    ),
    Case("aten::_to_copy", (rand(3, 4).abs(), U8)),
)

_WHOLE_TYPES = (I64, I32, I16, I8, U8)


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """Return the ends of an integer type, and some numbers between them."""
    ends = torch.iinfo(dtype)
    return torch.tensor([ends.min, ends.max, 0, 1, 2, 5, 7, 100], dtype=dtype)


def _extremes(dtype: torch.dtype) -> torch.Tensor:
    # Some backends have int32 for int64.
    return extremes(dtype).clamp(-9000, 9000) if dtype is I64 else extremes(dtype)


_FLOAT_PAIRS = (
    (
        _ODD.repeat(3),
        torch.tensor([0.0, 2.5, -1.5, math.inf, math.nan, -0.0]).repeat(5),
    ),
    (rand(37) * 9, rand(37)),
    (rand(9, dtype=F64) * 9, rand(9, dtype=F64)),
    (rand(0, 3), rand(3)),
    (rand(), rand(5)),
)
_QUOTIENTS = ["floor_divide", "fmod.Tensor", "remainder.Tensor"]
EDGES = (
    *(
        Case(f"aten::{op}", pair)
        for op in (*_QUOTIENTS, "atan2", "hypot", "fmax", "fmin", "nextafter")
        for pair in _FLOAT_PAIRS
    ),
    *(
        Case("aten::div.Tensor_mode", (*pair, mode))
        for pair in _FLOAT_PAIRS
        for mode in ("floor", "trunc")
    ),
    *(
        Case(f"aten::{op}", (_extremes(d), _extremes(d).flip(0).clamp(min=3)))
        for op in (*_QUOTIENTS, "gcd", "lcm", "fmax", "maximum", "mul.Tensor")
        for d in _WHOLE_TYPES
    ),
    *(
        Case(f"aten::{op}", (_extremes(d), torch.full((), -3, dtype=d)))
        for op in (*_QUOTIENTS, "gcd", "lcm", "fmin", "pow.Tensor_Tensor")
        for d in (I64, I32, I16, I8)
    ),
    *(
        Case(f"aten::{op}", (rand(0, dtype=I64), rand(1, dtype=I64) * 0))
        for op in _QUOTIENTS
    ),
    *(
        Case(f"aten::{op}.Scalar", (_extremes(d), 3))
        for op in ("fmod", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor")
        for d in _WHOLE_TYPES
    ),
    *(
        Case(f"aten::{op}", (_extremes(d), 3, 1))
        for op in ("add.Scalar", "rsub.Scalar")
        for d in _WHOLE_TYPES
    ),
    *(
        Case(f"aten::{op}", (_extremes(d),))
        for op in ("abs", "neg", "sign", "signbit", "isnan", "isinf", "relu", "floor")
        for d in _WHOLE_TYPES
    ),
    *(
        Case(f"aten::{op}", (rand(7, dtype=BOOL),))
        for op in ("sign", "signbit", "isnan")
    ),
    *(
        Case(f"aten::{op}", (rand(9, dtype=BOOL), rand(9, dtype=BOOL)))
        for op in ("mul.Tensor", "maximum", "minimum", "fmax", "fmin")
    ),
    Case("aten::add.Tensor", (rand(9, dtype=BOOL), rand(9, dtype=BOOL), 1)),
    *(
        Case(
            f"aten::bitwise_{side}_shift.Tensor", (_extremes(d)[:, None], shifts.to(d))
        )
        for side in ("left", "right")
        for d in _WHOLE_TYPES
        for shifts in (torch.tensor([0, 1, 3, 7, 8, 31, 32, 63, 64, 100]),)
    ),
    *(
        Case(f"aten::bitwise_{side}_shift.Tensor", (_extremes(I64), torch.tensor(-1)))
        for side in ("left", "right")
    ),
    *(
        Case("aten::pow.Tensor_Tensor", (rand(5, 9, dtype=d), rand(9, dtype=d)))
        for d in (*_WHOLE_TYPES, F64)
    ),
    *(Case("aten::pow.Tensor_Scalar", (_extremes(d), 5)) for d in _WHOLE_TYPES),
    *(Case("aten::pow.Scalar", (-3, rand(9, dtype=d))) for d in (I64, I32)),
    Case("aten::pow.Tensor_Tensor", (_ODD[:, None], _ODD)),
    Case("aten::ldexp.Tensor", (rand(9), rand(9, dtype=I32) * 30)),
    Case(
        "aten::ldexp.Tensor",
        (
            torch.tensor([0.17, 1e30, 0.17, 3.0, torch.nan]),
            torch.tensor([130, -160, 5000, -5000, 2]),
        ),
    ),
    Case("aten::ldexp.Tensor", (rand(9, dtype=I64), rand(9, dtype=I64))),
    Case("aten::ldexp.Tensor", (rand(9, dtype=BOOL), rand(9, dtype=BOOL))),
    Case("aten::ldexp.Tensor", (rand(9, dtype=I32), rand(9, dtype=F64))),
    Case("aten::ldexp.Tensor", (rand(3, dtype=F64), torch.tensor([-300, 200, 300]))),
    Case("aten::ldexp.Tensor", (rand(9, dtype=F64), rand(9, dtype=I64) * 60)),
    Case("aten::ldexp.Tensor", (rand(9, dtype=F64), rand(9, dtype=F64) * 60)),
    *(
        Case(
            "aten::masked_fill.Tensor",
            (rand(4, dtype=d), rand(4, dtype=BOOL), rand(dtype=d)),
        )
        for d in (F64, I64, U8, BOOL)
    ),
    Case("aten::masked_fill.Tensor", (rand(3, 4), _MASK, torch.tensor(3))),
    *(
        Case("aten::round.decimals", (_ODD.to(d) * 1.234567, decimals))
        for d in (F32, F64)
        for decimals in (-1, 0, 3)
    ),
    *(
        Case(f"aten::{op}", (x, *numbers))
        for x in (_ODD, rand(37) * 9, rand(5, dtype=F64), rand(0, 3), rand())
        for op, numbers in (
            ("leaky_relu", (0.01,)),
            ("elu", (1.0, 1, 1)),
            ("softplus", (1, 20)),
            ("hardtanh", (0.0, 6.0)),
        )
    ),
    Case("aten::elu", (rand(37) * 1e-4, 1.5, 1.25, 0.5)),
    *(Case("aten::hardtanh", (rand(9, dtype=d), -2.5, 3)) for d in (I64, I32, I16, I8)),
    *(
        Case("aten::_to_copy", (rand(9, dtype=source) * 3, target))
        for source in (F32, F64, I64, I32, I16, I8, U8)
        for target in (I16, I8, F32)
    ),
    *(
        Case("aten::_to_copy", (torch.tensor([300.7, -5.0, 40000.0]), d))
        for d in (I16, I8, U8)
    ),
    *(
        Case(f"aten::{op}.Tensor", (_extremes(d), _extremes(d).flip(0)))
        for op in _COMPARE
        for d in (I16, I8, U8)
    ),
)

_EVERYWHERE = torch.cat((torch.linspace(-13, 13, 61), torch.tensor([0.01, 1e-3, 31.0])))
_GAMMAS = torch.tensor(
    [0.0, 0.01, 0.3, 1.0, 2.5, 9.0, 30.0, 250.0, math.inf, math.nan, -1.0]
)
SPECIAL = (
    *(
        Case(f"aten::{op}", (x,))
        for op in (*(f"special_{rare}" for rare in _RARE.split()), *_SPECIAL.split())
        for x in (_EVERYWHERE, _EVERYWHERE.double(), _ODD.double(), rand(0, 3))
    ),
    *(
        Case(f"aten::{op}", (x / 13.01,))
        for op in ("erfinv", "special_ndtri")
        for x in (_EVERYWHERE, _EVERYWHERE.double())
    ),
    *(
        Case(f"aten::{op}", (x[:, None] * scale, x))
        for op in ("igamma", "igammac", "special_zeta")
        for x in (_GAMMAS, _GAMMAS.double())
        for scale in (1, 1.1)
    ),
    Case("aten::special_zeta", (torch.tensor([2.0, 3.0, 2.5]), torch.tensor(-3.25))),
    *(
        Case("aten::polygamma", (n, x))
        for n in (0, 1, 2, 3, 7)
        for x in (_EVERYWHERE + 0.3, _EVERYWHERE.double().abs() + 0.3, rand(0, 3))
    ),
)

CASES = (*UNARY, *BINARY, *ACTIVATION, *SELECTION, *EDGES, *SPECIAL)
