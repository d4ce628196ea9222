"""Cases of ops that reduce, rank or accumulate."""

import math

import torch

from op_cases.case import Case, rand

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

CASES = (*SUMS, *EXTREMES, *TRUTH, *RANKS, *SCANS)
