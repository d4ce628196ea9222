# ruff: noqa: E501  a table reads best with one line a case
"""Cases of ops that reduce, rank or accumulate."""

import math

import torch

from op_cases.case import Case, rand

INF, NAN = math.inf, math.nan
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I8, I32, I64, U8, BOOL = (torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool)

_DIMS = ((-1,), (0,), (0, -1), (1, 2), (), None)
_TIES = rand(4, 9, dtype=I32)

SUMS = (
    *(
        Case(f"aten::{op}", (rand(3, 5, 33, dtype=d), dim, keepdim))
        for op in ("sum.dim_IntList", "mean.dim")
        for d in (F32, BF16, F64)
        for dim in _DIMS
        for keepdim in (False, True)
    ),
    Case("aten::sum.dim_IntList", (rand(3, 4, dtype=I32), (1,), False)),
    Case("aten::sum.dim_IntList", (rand(3, 4, dtype=BOOL), (1,), False)),
    Case("aten::sum.dim_IntList", (rand(0, 4), (0,), False)),
    Case("aten::sum.dim_IntList", (rand(), (-1,), True)),
    Case("aten::sum.dim_IntList", (rand(3, 40, dtype=BF16), (1,), False), F32),
    Case("aten::sum.dim_IntList", (rand(3, 40, dtype=I32), (1,), False), F32),
    Case("aten::sum.dim_IntList", (rand(3, 40, dtype=I64), (0,), False), I32),
    Case("aten::sum.dim_IntList", (rand(3, 40, dtype=BOOL), (1,), False), I8),
    Case("aten::sum.dim_IntList", (rand(3, 40, dtype=F64), (0, 1), True), F32),
    Case("aten::mean.dim", (rand(3, 40, dtype=F16), (1,), True), F32),
    Case("aten::mean.dim", (rand(3, 4, dtype=I32), (1,), True), F32),
    *(
        Case("aten::prod.dim_int", (rand(3, 5, dtype=d), dim, keepdim))
        for d in (F32, BF16, I32, BOOL)
        for dim, keepdim in ((-1, False), (0, True))
    ),
    Case("aten::prod.dim_int", (rand(3, 5, dtype=BF16), 1, False), F32),
    *(Case("aten::prod", (rand(3, 5, dtype=d),)) for d in (F32, BF16, I32, BOOL)),
    Case("aten::prod", (rand(),)),
    Case("aten::prod", (rand(3, 5, dtype=BF16),), F32),
    *(
        Case("aten::linalg_vector_norm", (rand(3, 5, 7, dtype=d), order, dim, keepdim))
        for d in (F32, BF16, F64)
        for order in (2, 1.0, 0, math.inf, 3.5)
        for dim, keepdim in ((None, False), ((-1,), True), ((0, 2), False))
    ),
    Case("aten::linalg_vector_norm", (rand(), 2, None, False)),
    Case("aten::linalg_vector_norm", (rand(3, 5, dtype=BF16), 2, (1,), False), F32),
    *(
        Case("aten::var.correction", (rand(3, 5, 7, dtype=d), dim, correction, keepdim))
        for d in (F32, BF16, F64)
        for dim in ((-1,), (0, 2), None)
        for correction in (None, 0, 1, 0.5)
        for keepdim in (False, True)
    ),
)

EXTREMES = (
    *(
        Case(f"aten::{op}", (rand(3, 5, 7, dtype=d), dim, keepdim))
        for op in ("amax", "amin")
        for d in (F32, BF16, I32)
        for dim, keepdim in (((-1,), True), ((0, 2), False), ((), False))
    ),
    *(
        Case(f"aten::{op}", (x, dim, keepdim))
        for op in ("argmax", "argmin")
        for x in (rand(3, 5), rand(3, 5, dtype=BF16), _TIES)
        for dim, keepdim in ((-1, False), (0, True), (None, False), (None, True))
    ),
    Case("aten::argmax", (rand(), -1, True)),
    *(
        Case(f"aten::{op}.dim", (x, dim, keepdim))
        for op in ("max", "min")
        for x in (rand(3, 5), rand(3, 5, dtype=BF16), _TIES)
        for dim, keepdim in ((-1, False), (0, True))
    ),
    Case("aten::max.dim", (rand(), 0, True)),
    Case("aten::max.dim", (rand(0, 3), 1, False)),
)

TRUTH = (
    *(
        Case(f"aten::{op}.dims", (rand(3, 4, 2, dtype=d), dim, keepdim))
        for op in ("any", "all")
        for d in (BOOL, F32, U8)
        for dim, keepdim in (((0, -1), False), ((1,), True), (None, False))
    ),
    *(
        Case(f"aten::{op}.dim", (rand(3, 4, dtype=d), dim, keepdim))
        for op in ("any", "all")
        for d in (BOOL, F32, I32, U8)
        for dim, keepdim in ((-1, False), (0, True))
    ),
    *(
        Case(f"aten::{op}", (rand(*shape, dtype=d),))
        for op in ("any", "all")
        for d in (BOOL, F32, U8)
        for shape in ((3, 4), (), (0, 2))
    ),
)

RANKS = (
    *(
        Case("aten::topk", (x, k, dim, largest, True))
        for x in (rand(4, 9), rand(4, 9, dtype=BF16), _TIES)
        for k, dim in ((3, -1), (2, 0), (0, 1), (9, 1))
        for largest in (True, False)
    ),
    Case("aten::topk", (rand(4, 9), 4, 1, True, False)),
    *(
        Case("aten::sort", (x, dim, descending))
        for x in (rand(4, 9), rand(4, 9, dtype=BF16), _TIES, rand(4, 9, dtype=BOOL))
        for dim, descending in ((-1, False), (0, True))
    ),
    Case("aten::sort", (rand(), 0, False)),
    *(
        Case(f"aten::{op}", (x, *given, dim, keepdim))
        for op, given in (("median.dim", ()), ("kthvalue", (2,)))
        for x in (rand(4, 9), rand(4, 9, dtype=I32))
        for dim, keepdim in ((-1, False), (0, True))
    ),
    *(Case("aten::median", (x,)) for x in (rand(3, 5), rand(6, dtype=I32), rand())),
    Case("aten::nanmedian", (rand(3, 5).log(),)),
    Case("aten::nanmedian.dim", (rand(4, 9).log(), -1, False)),
    *(
        Case(
            "aten::var_mean.correction", (rand(3, 4, 5, dtype=d), dim, correction, keep)
        )
        for d in (F32, F64)
        for dim, correction, keep in (
            (None, 1, False),
            ((1,), 0, True),
            ((0, -1), None, False),
        )
    ),
)

SCANS = (
    *(
        Case(f"aten::{op}", (rand(3, 5, dtype=d), dim))
        for op in ("cumsum", "cumprod")
        for d in (F32, BF16, I32, BOOL)
        for dim in (0, -1)
    ),
    *(
        Case(f"aten::{op}", (x, dim))
        for op in ("cummax", "cummin")
        for x in (rand(3, 5), rand(3, 5, dtype=I32))
        for dim in (0, -1)
    ),
    *(Case("aten::logcumsumexp", (rand(3, 5, dtype=d), 1)) for d in (F32, F64)),
    Case("aten::cumsum", (rand(), 0)),
    Case("aten::cumsum", (rand(3, 0), 1)),
    Case("aten::cumsum", (rand(3, 5, dtype=BOOL), 1), I32),
    Case("aten::cumsum", (rand(3, 5, dtype=BF16), 1), F32),
    *(
        Case(f"aten::{op}.int", (rand(3, 4, 37, dtype=d), dim))
        for op in ("softmax", "log_softmax")
        for d in (F32, BF16, F16, F64)
        for dim in (-1, 0)
    ),
    *(
        Case(f"aten::{op}.int", (rand(3, 37, dtype=d), -1), F32)
        for op in ("softmax", "log_softmax")
        for d in (BF16, F16, F32, I32)
    ),
    Case("aten::softmax.int", (rand(), 0)),
    Case("aten::softmax.int", (rand(0, 5), -1)),
)

# Many elements, those that are no numbers, none at all, and other dtypes.
_ODD = torch.tensor(
    [
        [1.0, NAN, -INF, 0.0, -0.0],
        [INF, 2.0, -INF, 3.0, INF],
        [0.0, -1.0, 2.0, 2.0, -0.0],
    ]
)
_FOLDED = (
    rand(3, 1, 13, 17),
    rand(5, 6, 7).permute(2, 0, 1),
    rand(2, 300, 9, dtype=F64),
    _ODD,
)
_EMPTY = (rand(0, 3), rand(3, 0))
EDGES = (
    *(
        Case(f"aten::{op}", (x, *given, dim, *rest, False))
        for op, given, rest in (
            ("sum.dim_IntList", (), ()),
            ("mean.dim", (), ()),
            *(("linalg_vector_norm", (order,), ()) for order in (0, 1, 2, INF, -INF, -1.5, 3)),
        )
        for x in (*_FOLDED, *(() if given and given[0] not in (0, 1, 2, 3) else _EMPTY))
        for dim in ((0,), (-1,), (0, -1), (1,), (-2, -1), None)
    ),
    *(
        Case(f"aten::{op}.correction", (x, dim, correction, False))
        for op, correction in (("var", 1), ("var_mean", 0))
        for x in (*_FOLDED[1:], rand(2, 3, 13, 17))
        for dim in ((0,), (-1,), (0, -1), (1,), (-2, -1), None)
        # torch's mean of infinities beside variances depends on their order
        if op == "var" or x is not _ODD
    ),
    *(
        Case(f"aten::{op}", (x.to(d), dim, True))
        for op in ("amax", "amin")
        for x in (rand(3, 40, 21) * 9, _ODD)
        for d in (F32, F64, I8, I64, U8, BOOL)
        for dim in ((0,), (1,), (-1,), ())
        if d.is_floating_point or x is not _ODD
    ),
    *(
        Case(f"aten::{op}", (x.to(d), dim, False))
        for op in ("argmax", "argmin", "max.dim", "min.dim", "median.dim", "nanmedian.dim")
        for x in (rand(3, 40, 21) * 9, _ODD)
        for d in (F32, F64, I8, I64)
        for dim in (0, 1, -1)
        if d.is_floating_point or x is not _ODD
    ),
    *(
        Case(f"aten::{op}", (x, *given, True, *rest))
        for op, given, rest in (("sort", (-1,), ()), ("sort", (0,), ()), ("topk", (3, -1), (True,)))
        for x in (_ODD if op == "sort" else rand(4, 9), rand(4, 9, dtype=F64), torch.randperm(36).view(4, 9))
    ),
    *(
        Case("aten::kthvalue", (x, k, dim, False))
        for x in (rand(9, 40, dtype=I8), rand(9, 40).round(), _ODD)
        for k, dim in ((1, -1), (3, 0), (5, 1), (2, 1))
        if k <= x.shape[dim]
    ),
    *(
        Case(f"aten::{op}", (x, dim))
        for op in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
        for x in (_ODD, rand(3, 7, 5, dtype=F64), rand(3, 0), rand(2, 3, 40).permute(2, 0, 1))
        for dim in (0, -1)
    ),
    *(Case(f"aten::{op}", (rand(3, 40, dtype=d), 1)) for op in ("cummax", "cummin") for d in (I8, U8, BOOL)),
    *(Case(f"aten::{op}", (x,)) for op in ("median", "nanmedian") for x in (_ODD, _ODD[2], rand(0), rand(9, dtype=U8))),
    *(Case(f"aten::{op}", (rand(3, 70, 300, dtype=d), 1)) for op in ("softmax.int", "log_softmax.int") for d in (F32, F64)),
    *(Case(f"aten::{op}", (_ODD, dim)) for op in ("softmax.int", "log_softmax.int") for dim in (0, 1)),
    *(Case(f"aten::{op}", (torch.full((2, 3), -INF), 1)) for op in ("softmax.int", "log_softmax.int")),
    *(Case("aten::prod.dim_int", (rand(3, 50, dtype=d), dim, False)) for d in (F64, I64) for dim in (0, 1)),
    *(Case("aten::prod", (x,)) for x in (rand(0, 3), _ODD)),
)  # fmt: skip

CASES = (*SUMS, *EXTREMES, *TRUTH, *RANKS, *SCANS, *EDGES)
