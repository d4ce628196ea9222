"""Cases of ops that read or write at indices."""

import torch

from op_cases.case import Case, cases, index, rand

BF16, F16 = torch.bfloat16, torch.float16
F32, F64 = torch.float32, torch.float64
I8, I32, I64, BOOL = torch.int8, torch.int32, torch.int64, torch.bool

READS = (
    Case("aten::embedding", (rand(7, 4), index([0, 6], [3, 3]))),
    Case("aten::embedding", (rand(7, 4, dtype=BF16), index(5, dtype=I32))),
    Case("aten::embedding", (rand(7, 4), torch.tensor(2))),
    Case("aten::embedding", (rand(7, 4), torch.zeros(0, 3, dtype=I64))),
    Case("aten::index_select", (rand(4, 5), -1, index(4, 0, 0))),
    Case("aten::index_select", (rand(4, 5, dtype=I8), 0, index(2, 1, dtype=I32))),
    Case("aten::index_select", (rand(4, 5), 1, torch.tensor(3))),
    Case("aten::index_select", (rand(4, 5), 1, torch.zeros(0, dtype=I64))),
    Case("aten::gather", (rand(4, 5), 1, index([0, 4], [1, 1], [2, 2]))),
    Case("aten::gather", (rand(4, 5, dtype=BF16), -2, index([3, 0, 1]))),
    Case("aten::gather", (rand(), 0, torch.tensor(0))),
    Case("aten::gather", (rand(3), 0, torch.zeros(0, dtype=I64))),
    *(
        Case("aten::index.Tensor", (rand(4, 5, 6), indices))
        for indices in (
            (index(0, -1, 2),),
            (index([0], [3]), index(1, 2)),
            (None, index(-5, 4)),
            (None, index(0, 1), index(2, 3)),
            (index(0, 1), None, index(2, 3)),
            (torch.tensor(1), None, torch.tensor(2)),
            (None, None, index([1, 2], [3, -6])),
            (index(0, 1, dtype=I32), index(0, dtype=I32)),
            (torch.zeros(0, dtype=I64),),
        )
    ),
    Case("aten::index.Tensor", (rand(4, dtype=BOOL), (index(0, 3),))),
)

WRITES = (
    Case("aten::copy", (rand(3, 4), rand(3, 4))),
    Case("aten::copy", (rand(3, 4), rand(4, dtype=I32))),
    Case("aten::copy", (rand(3, 4, dtype=BF16), rand())),
    Case("aten::index_copy", (rand(4, 5), -1, index(4, 0), rand(4, 2))),
    Case(
        "aten::index_copy",
        (rand(4, 5, dtype=BF16), 0, index(2), rand(1, 5, dtype=BF16)),
    ),
    Case("aten::index_copy", (rand(2, 40), 1, torch.arange(39, 3, -1), rand(2, 36))),
    Case("aten::index_copy", (rand(4, 5), 0, torch.zeros(0, dtype=I64), rand(0, 5))),
    *(
        Case("aten::index_put", (rand(4, 5, 6), indices, rand(*values), accumulate))
        for indices, values in (
            ((index(0, -1),), (2, 5, 6)),
            ((None, index(1, 2)), (4, 2, 6)),
            ((None, None, index(3)), (4, 5, 1)),
            ((index([0], [3]), index(1, 2)), (6,)),
            ((index(0, 1), None, index(2, 3)), (2, 5)),
            ((torch.tensor(1), None, torch.tensor(2)), (5,)),
            ((torch.tensor(1),), ()),
            ((torch.zeros(0, dtype=I64),), (0, 5, 6)),
        )
        for accumulate in (False, True)
    ),
    Case(
        "aten::index_put",
        (rand(3, 50), (None, torch.arange(50) - 50), rand(3, 50), False),
    ),
    Case(
        "aten::index_put",
        (rand(9, dtype=BOOL), (index(1, -3, 1),), rand(3, dtype=BOOL), True),
    ),
    Case(
        "aten::index_add",
        (rand(9, dtype=BOOL), 0, index(1, 3, 1), rand(3, dtype=BOOL), 1),
    ),
    Case(
        "aten::scatter_add",
        (rand(9, dtype=BOOL), 0, index(1, 3, 1), rand(3, dtype=BOOL)),
    ),
    Case("aten::scatter.src", (rand(4, 5), 1, index([4, 0], [1, 2]), rand(3, 2))),
    Case(
        "aten::scatter.src",
        (rand(4, 5, dtype=I32), -2, index([3, 0, 1]), rand(1, 3, dtype=I32)),
    ),
    Case("aten::scatter.src", (rand(), 0, torch.tensor(0), rand())),
    *cases(
        "aten::index_add",
        (rand(4, 5), -1, index(4, 0, 4), rand(4, 3), 1),
        (rand(4, 5, dtype=I32), 0, index(2), rand(1, 5, dtype=I32), -2),
        (rand(4, 5, dtype=BF16), 1, index(1, 1), rand(4, 2, dtype=BF16), 0.5),
        (rand(4, 5), 0, torch.zeros(0, dtype=I64), rand(0, 5), 1),
    ),
    Case("aten::scatter_add", (rand(4, 5), 1, index([4, 0, 4], [1, 1, 2]), rand(3, 3))),
    Case(
        "aten::scatter_add",
        (rand(4, 5, dtype=BF16), 0, index([3, 0, 1]), rand(2, 4, dtype=BF16)),
    ),
    Case("aten::scatter_add", (rand(), 0, torch.tensor(0), rand())),
    *(
        Case(
            "aten::scatter_reduce.two",
            (rand(4, 5), 1, index([4, 0, 4], [1, 1, 2]), rand(3, 3), reduce, whole),
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for whole in (True, False)
    ),
    *(
        Case(
            "aten::scatter_reduce.two",
            (x, 0, index([3, 0], [0, 3], [3, 1]), source, reduce, whole),
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for whole in (True, False)
        for x, source in (
            *((rand(4, 2, dtype=d), rand(3, 2, dtype=d)) for d in (F64, I8, I64)),
            (rand(4, 2), torch.tensor([[0.5, 1], [torch.nan, 2], [-torch.inf, 3]])),
        )
    ),
    *(
        Case(
            "aten::scatter_reduce.two",
            (
                rand(9, dtype=BOOL),
                0,
                index(1, 3, 1, 8),
                rand(4, dtype=BOOL),
                reduce,
                whole,
            ),
        )
        for reduce in ("sum", "prod", "amax", "amin")
        for whole in (True, False)
    ),
    *(
        Case(f"aten::{op}", (rand(4, 5, dtype=d), 1, index(4, 0), *rest))
        for d in (I8, F64)
        for op, rest in (("index_add", (rand(4, 2, dtype=d), 3)),)
    ),
    Case("aten::scatter.value", (rand(4, 5), 1, index([4, 0], [1, 2]), 0.5)),
    Case("aten::scatter.value", (rand(4, 5, dtype=BOOL), 0, index([3, 0, 1]), True)),
    Case("aten::scatter.value", (rand(4, 50), 1, torch.arange(50).reshape(1, 50), 2)),
)

CACHE = (
    *cases(
        "kvc::cache_update",
        (rand(1, 2, 8, 3), rand(1, 2, 2, 3), index(6), -2, "linear", None, 0),
        (rand(3, 2, 8, 3), rand(3, 2, 2, 3), index(0, 3, 6), 2, "linear", None, 0),
        (rand(2, 8, 3), rand(2, 8, 3), None, 1, "linear", None, 0),
        (rand(2, 2, 8), rand(2, 2, 3), index(1, 4), -1, "linear", None, 0),
        (rand(1, 2, 8, 3), rand(1, 2, 3, 3), index(7), -2, "circular", None, 0),
        (rand(2, 2, 8, 3), rand(2, 2, 8, 3), index(-3, 21), -2, "circular", None, 0),
        (rand(2, 8, dtype=I8), rand(2, 0, dtype=I8), index(8, 0), 1, "linear", None, 0),
        (
            rand(1, 2, 8, 3, dtype=BF16),
            rand(1, 2, 1, 3, dtype=BF16),
            index(3),
            -2,
            "linear",
            None,
            0,
        ),
    ),
    *(
        Case("kvc::cache_update", (rand(*shape, dtype=F16), update, *given, 0))
        for shape, update, *given in (
            ((2, 2, 8, 9), rand(2, 2, 3, 9), index(0, 5), 2, "linear", None),
            ((2, 2, 8), rand(2, 2, 3), index(1, 4), -1, "linear", None),
            ((1, 8, 9), rand(1, 3, 9), index(7), 1, "circular", None),
            ((2, 8, 3), rand(2, 5, 3), index(0, 2), 1, "linear", index(5, 2)),
        )
    ),
    *(
        Case("kvc::cache_update", (rand(1, 8, 3), rand(1, n, 3), *given, 3))
        for n in (1, 4)
        for start in (1, 4, 7, 30)
        for given in ((index(start), 1, "circular", None),)
    ),
    *(
        Case("kvc::cache_update", (*cache, start, 1, mode, counts, 0))
        for cache in ((rand(3, 8, 2), rand(3, 5, 2)), (rand(3, 8), rand(3, 5)))
        for start in (index(0, 2, 6), None)
        for mode in ("linear", "circular")
        for counts in (index(5, 0, 2), index(0, 0, 0))
    ),
)

_ENDS = torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0])
SEARCHES = (
    *(
        Case("aten::bucketize.Tensor", (x, _ENDS, narrow, right))
        for x in (rand(3, 5), _ENDS, rand())
        for narrow in (False, True)
        for right in (False, True)
    ),
    *(
        Case("aten::searchsorted.Tensor", (rows, rand(3, 4), False, right))
        for rows in (_ENDS, rand(3, 6).sort(-1).values)
        for right in (False, True)
    ),
)

_ROWS = torch.tensor([[-1.0, 0.5, 0.5, torch.inf, torch.nan], [0.0, 0, 0, 0, 0]])
_SOUGHT = torch.tensor([[0.5, torch.nan, -torch.inf], [-0.0, 1.0, torch.inf]])
SEARCHES += (
    *(
        Case("aten::searchsorted.Tensor", (_ROWS.to(d), _SOUGHT.to(d), narrow, right))
        for d in (F32, F64)
        for narrow in (False, True)
        for right in (False, True)
    ),
    *(
        Case("aten::bucketize.Tensor", (x, ends, False, right))
        for x, ends in (
            (rand(40, dtype=I8), index(-3, 0, 0, 5, dtype=I8)),
            (rand(4, dtype=I64), torch.zeros(0, dtype=I64)),
            (rand(0, 3), rand(2)),
        )
        for right in (False, True)
    ),
)

CASES = (*READS, *SEARCHES, *WRITES, *CACHE)
