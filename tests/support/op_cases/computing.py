# ruff: noqa: E501  a table reads best with one line a case
"""Cases of products, norms and attention."""

import torch
from torch import Tensor

from op_cases.case import Case, index, rand

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I8, I32, I64, U8 = torch.int8, torch.int32, torch.int64, torch.uint8

PRODUCTS = (
    *(
        Case("aten::linear", (rand(*shape, dtype=d), rand(40, 24, dtype=d), bias))
        for d in (F32, BF16)
        for shape in ((24,), (1, 24), (7, 24), (1, 1, 24), (2, 5, 24), (2, 2, 3, 24))
        for bias in (None, rand(40, dtype=d))
    ),
    Case("aten::linear", (rand(0, 24), rand(40, 24), rand(40))),
    Case("aten::linear", (rand(1, 33, 576), rand(700, 576), rand(700))),
    Case("aten::linear", (rand(2, 1, 0), rand(4, 0), rand(4))),
    Case("aten::linear", (rand(2, 0, 5), rand(4, 5), rand(4))),
    *(
        Case("aten::matmul", (rand(*a, dtype=d), rand(*b, dtype=d)))
        for d in (F32, BF16)
        for a, b in (
            ((5,), (5,)),
            ((5,), (5, 3)),
            ((4, 5), (5,)),
            ((4, 5), (5, 3)),
            ((2, 4, 5), (5, 3)),
            ((2, 4, 5), (2, 5, 3)),
            ((2, 1, 4, 5), (3, 5, 6)),
            ((5,), (2, 5, 3)),
            ((5,), (2, 1, 5, 3)),
            ((4, 5), (2, 5, 3)),
            ((4, 5), (2, 3, 5, 1)),
            ((2, 3, 4, 5), (5, 3)),
            ((1, 1, 5), (5, 3)),
            ((1, 1, 5), (1, 5, 3)),
            ((2, 3, 4, 5), (5,)),
            ((2, 4, 5), (5,)),
            ((2, 0, 5), (5, 3)),
        )
    ),
    Case("aten::matmul", (rand(3, 4, dtype=I32), rand(4, 2, dtype=I32))),
    *(
        Case("aten::linear", (rand(2, 3, 9, dtype=d), rand(70, 9, dtype=d), bias))
        for d in (F64, I64)
        for bias in (None, rand(70, dtype=d))
    ),
    *(
        Case("aten::matmul", (rand(*a, dtype=d), rand(*b, dtype=d)))
        for d in (F64, I64, U8)
        for a, b in (
            ((5,), (5,)),
            ((4, 5), (5, 70)),
            ((2, 1, 4, 5), (3, 5, 6)),
            ((2, 0), (0, 3)),
        )
    ),
    *(
        Case("kvc::linear_w8", (rand(2, 3, 9), rand(700, 9, dtype=I8), rand(700), bias))
        for bias in (None, rand(700))
    ),
    Case(
        "kvc::linear_w8",
        (rand(40, 1025), rand(70, 1025, dtype=I8), rand(70) / 1000, None),
    ),
    Case("kvc::linear_w8", (rand(0, 9), rand(4, 9, dtype=I8), rand(4), None)),
    *(Case("aten::mm", (rand(4, 5, dtype=d), rand(5, 3, dtype=d))) for d in (F32, F16)),
    *(
        Case("aten::bmm", (rand(2, 4, 5, dtype=d), rand(2, 5, 3, dtype=d)))
        for d in (F32, BF16)
    ),
    *(
        Case("aten::addmm", (bias, rand(4, 5), rand(5, 3), beta, alpha))
        for bias in (rand(3), rand(4, 3), rand(4, 1), rand())
        for beta, alpha in ((1, 1), (0.5, 2))
    ),
    *(
        Case(
            "aten::addmm",
            (rand(3, dtype=d), rand(4, 5, dtype=d), rand(5, 3, dtype=d), beta, -2),
        )
        for d in (F64, I32)
        for beta in (0, 3)
    ),
)

DISTANCES = tuple(
    Case("aten::_cdist_forward", (rand(*a), rand(*b), p, mode))
    for a, b in (((4, 5), (3, 5)), ((2, 1, 30, 5), (3, 28, 5)), ((0, 5), (3, 5)))
    for p in (0.0, 1.0, 2.0, 2.5, float("inf"))
    for mode in (None, 1, 2)
)

PLAIN_CONVOLUTIONS = (
    *(
        Case("aten::convolution", (rand(*x, dtype=d), rand(*w, dtype=d), b, *settings))
        for d in (F64, I64)
        for x, w, b, settings in (
            ((2, 4, 11), (6, 2, 3), rand(6, dtype=d), ((2,), (3,), (2,), 2)),
            ((2, 3, 8, 9), (5, 3, 3, 2), None, ((1, 2), (1, 0), (1, 3), 1)),
            ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), None, ((1, 1, 2), (0, 9, 0), (1, 1, 1), 1)),
        )
    ),
    *(
        Case(op, (rand(*x, dtype=d), rand(*w, dtype=d), b, *settings))
        for d in (F64, I64)
        for op, x, w, b, settings in (
            ("aten::conv_transpose1d", (2, 4, 5), (4, 3, 3), rand(6, dtype=d), ((2,), (1,), (1,), 2, (3,))),
            ("aten::conv_transpose2d.input", (1, 2, 3, 4), (2, 3, 2, 3), None, ((2, 1), (0, 1), (1, 0), 1, (1, 2))),
            ("aten::conv_transpose3d.input", (1, 2, 2, 3, 2), (2, 1, 2, 2, 2), None, ((1, 2, 3), (0, 1, 0), (0, 1, 0), 1, (1, 1, 1))),
        )
    ),
)  # fmt: skip

CHANNEL_NORMS = (
    *(
        Case("aten::batch_norm", (rand(*shape), w, b, rand(3), rand(3).abs(), 1e-5))
        for shape in ((2, 3), (2, 3, 5), (1, 3, 4, 5))
        for w, b in ((None, None), (rand(3), rand(3)))
    ),
    *(
        Case("aten::group_norm", (rand(*shape), groups, w, b, 1e-5))
        for shape in ((2, 4, 5), (1, 4, 3, 3))
        for groups in (1, 2, 4)
        for w, b in ((None, None), (rand(4), rand(4)))
    ),
    *(
        Case(
            "aten::batch_norm",
            (
                rand(*shape, dtype=dtype),
                *(rand(3, dtype=dtype).abs() for _ in range(4)),
                1e-3,
            ),
        )
        for shape in ((0, 3), (2, 3, 0), (2, 3, 7, 7), (2, 3, 2, 3, 4))
        for dtype in (torch.float32, torch.float64)
    ),
    *(
        Case(
            "aten::group_norm",
            (
                rand(*shape, dtype=dtype) + 3,
                groups,
                rand(6, dtype=dtype),
                rand(6, dtype=dtype),
                1e-3,
            ),
        )
        # Groups of several pieces too, shared among threads.
        for shape in ((0, 6, 4), (2, 6), (1, 6, 33, 41), (1, 6, 50, 60))
        for groups in (1, 3)
        for dtype in (torch.float32, torch.float64)
    ),
)

NORMS = (
    *(
        Case("aten::rms_norm", (rand(3, 4, 24, dtype=d), (24,), weight, eps))
        for d in (F32, BF16)
        for weight in (None, rand(24, dtype=d))
        for eps in (None, 1e-5)
    ),
    Case("aten::rms_norm", (rand(2, 3, 4), (3, 4), rand(3, 4), 1e-6)),
    *(
        Case("aten::layer_norm", (rand(3, 24, dtype=d), (24,), weight, bias, 1e-5))
        for d in (F32, BF16)
        for weight, bias in (
            (None, None),
            (rand(24, dtype=d), None),
            (rand(24, dtype=d), rand(24, dtype=d)),
        )
    ),
    Case("aten::layer_norm", (rand(0, 24), (24,), None, None, 1e-5)),
)

_MASK = torch.ones(5, 7, dtype=torch.bool).tril(2)
ATTENTION = (
    *(
        Case(
            "aten::scaled_dot_product_attention",
            (
                *(rand(2, *s, 8, dtype=d) for s in ((4, 5), (kv, 7), (kv, 7))),
                mask,
                causal,
                scale,
                kv != 4,
            ),
        )
        for d in (F32, BF16)
        for kv, mask, causal, scale in (
            (4, None, False, None),
            (4, None, True, 0.3),
            (4, _MASK, False, None),
            (2, _MASK, False, None),
            (2, None, True, None),
            (1, None, False, 1.0),
        )
    ),
    *(
        Case("aten::scaled_dot_product_attention", (*given, False, None, False))
        for given in (
            (rand(2, 4, 5, 8), rand(2, 4, 7, 8), rand(2, 4, 7, 6), rand(5, 7)),
            (rand(3, 5, 8), rand(3, 7, 8), rand(3, 7, 8), None),
        )
    ),
    *(
        Case(
            "aten::scaled_dot_product_attention",
            (*(rand(*s, dtype=d) for s in shapes), mask, causal, scale, shared),
        )
        for d, shapes, mask, causal, scale, shared in (
            (F64, ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)), None, False, None, False),
            (F64, ((2, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8)), None, True, 0.3, True),
            (F64, ((4, 5, 8), (4, 7, 8), (4, 7, 8)), rand(5, 7, dtype=F64), False, None, False),
            (F64, ((5, 8), (7, 8), (7, 8)), torch.ones(7).bool(), False, None, False),
            (F64, ((5, 8), (7, 8), (7, 8)), torch.eye(5, 7).roll(1, 0).tril().bool(), False, None, False),
            (F64, ((1, 5, 0), (1, 7, 0), (1, 7, 3)), None, False, 0.5, False),
            (F32, ((9, 8), (7, 8), (7, 8)), None, True, None, False),
            (F32, ((2, 1, 3, 5, 8), (2, 4, 1, 7, 8), (2, 4, 1, 7, 8)), rand(4, 1, 1, 7), False, None, False),
            (F32, ((1, 50, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8)), None, True, None, True),
        )
    ),
)  # fmt: skip


def _attended(*shape, valid, causal=True, scale=None, dtype=F32, **options) -> Case:
    """Return a case of attention over a cache.

    `shape` is (batch, heads, seq, kv_heads, slots, value_dim).
    """
    batch, heads, seq, kv_heads, slots, width = shape
    names = ("window_left", "window_right", "softcap", "mask", "slopes", "sinks")
    stored = options.get("stored", dtype)
    operands = (
        rand(batch, heads, seq, 8, dtype=dtype),
        rand(batch, kv_heads, slots, 8, dtype=stored),
        rand(batch, kv_heads, slots, width, dtype=stored),
    )
    settings = (*map(options.get, names), options.get("layout", "linear"))
    rest = (None, None, options.get("row_lengths"), options.get("keep", 0))
    return Case("kvc::attention", (*operands, valid, scale, causal, *settings, *rest))


_NONE = torch.zeros(0, dtype=torch.int64)

CACHED = (
    *(
        _attended(batch, 4, seq, kv, 16, width, valid=valid, causal=causal)
        for batch, valid in ((1, index(9)), (3, index(3, 0, 16)))
        for seq in (1, 5)
        for kv, width in ((4, 8), (2, 6))
        for causal in (True, False)
    ),
    _attended(1, 4, 2, 2, 16, 8, valid=index(7), scale=0.2, dtype=BF16),
    *(
        _attended(1, 4, seq, kv, 16, width, valid=index(9), stored=F16, layout=layout)
        for seq, kv, width in ((1, 2, 8), (1, 1, 6), (5, 2, 8))
        for layout in ("linear", "circular")
    ),
    _attended(0, 4, 1, 2, 4, 8, valid=_NONE),
    *(
        _attended(2, 4, seq, 2, 16, 8, valid=index(16, 9), dtype=dtype, **options)
        for seq in (1, 5)
        for dtype in (F32, BF16)
        for options in (
            {"window_left": 3},
            {"window_left": 2, "window_right": 1, "causal": False},
            {"softcap": 2.0},
            {"mask": rand(1, 4, seq, 12, dtype=torch.bool)},
            {"mask": rand(2, 1, seq, 20)},
            {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
            {"sinks": rand(4, dtype=dtype)},
        )
    ),
    *(
        _attended(2, 4, seq, 2, 8, 6, valid=index(21, 3), layout="circular", **options)
        for seq in (1, 3)
        for options in (
            {},
            {"window_left": 4},
            {"softcap": 2.0, "window_left": 4},
            {"window_left": 2, "keep": 3},
        )
    ),
    *(
        _attended(
            3, 4, 5, 2, 8, 6, valid=index(8, 3, 5), row_lengths=row_lengths, **options
        )
        for row_lengths in (index(5, 1, 3), index(0, 0, 0), index(4, 0, 1))
        for options in ({}, {"window_left": 2, "layout": "circular"}, {"softcap": 2.0})
    ),
)

EXPERTS = tuple(
    Case("kvc::expert_linear", (rand(len(chosen), 8, dtype=d), rand(*weight, dtype=d), index(*chosen), bias, turned))
    for d in (F32, BF16)
    for chosen in ((2,), (1, 1), (3, 0, 3, 3, 1))
    for weight, turned in (((4, 5, 8), False), ((4, 8, 5), True))
    for bias in (None, rand(4, 5, dtype=d))
)  # fmt: skip


def _int8_rows(*shape: int) -> tuple[Tensor, Tensor]:
    """Return random rows of an int8 cache, and a scale for each row."""
    return rand(*shape, dtype=torch.int8), rand(*shape[:-1]).abs()


def _attended_int8(seq: int, dtype: torch.dtype, **options: object) -> Case:
    """Return a case like those of `_attended`, over an int8 cache."""
    case = _attended(2, 4, seq, 2, 16, 6, valid=index(9, 3), dtype=dtype, **options)
    (k, k_scale), (v, v_scale) = _int8_rows(2, 2, 16, 8), _int8_rows(2, 2, 16, 6)
    q, _, _, *settings = case.arguments
    return Case(case.op, (q, k, v, *settings[:-4], k_scale, v_scale, *settings[-2:]))


CACHED_INT8 = (
    *(Case("kvc::quantize_cache", (rand(2, 3, 4, dtype=d),)) for d in (F32, BF16)),
    Case("kvc::quantize_cache", (rand(8),)),
    Case("kvc::quantize_cache", (rand(2, 0, 4),)),
    *(
        _attended_int8(seq, dtype, **options)
        for seq in (1, 3)
        for dtype in (F32, BF16)
        for options in (
            {},
            {"window_left": 4, "layout": "circular"},
            {"window_left": 4, "layout": "circular", "keep": 2},
            {"row_lengths": index(1, 0)},
        )
    ),
)

FUSED = (
    *(
        Case("kvc::glu", (rand(*shape), rand(*shape), activation))
        for activation in ("silu", "gelu", "gelu_tanh")
        for shape in ((), (0, 3), (2, 3, 5), (1, 1030))
    ),
    *(
        Case("kvc::rotary_embedding", (rand(*shape), rand(*table), rand(*table)))
        for shape, table in (
            ((2, 3, 4, 6), (4, 3)),
            ((2, 3, 4, 6), (2, 1, 4, 6)),
            ((3, 2), (1, 1)),
            ((0, 4), (4,)),
            ((2,), (2,)),
            ((1, 9, 40, 64), (1, 1, 40, 32)),
        )
    ),
    Case("kvc::rotary_embedding", (rand(1, 4, 6, 8).transpose(1, 2), rand(4, 8), rand(4, 8))),
)  # fmt: skip

CASES = (
    *PLAIN_CONVOLUTIONS,
    *(*FUSED, *EXPERTS, *CHANNEL_NORMS, *PRODUCTS, *DISTANCES),
    *(*NORMS, *ATTENTION, *CACHED, *CACHED_INT8),
)
