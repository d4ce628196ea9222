"""Cases of ops that move or view elements, or make a tensor of nothing."""

import torch

from op_cases.case import Case, rand

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
I8, I32, I64, BOOL = torch.int8, torch.int32, torch.int64, torch.bool

VIEWS = (
    Case("aten::alias", (rand(2, 3),)),
    *(
        Case(f"aten::{op}", (rand(*shape), size))
        for op in ("view", "reshape")
        for shape, size in (
            ((2, 6), (3, 4)),
            ((2, 6), (-1,)),
            ((2, 6), (2, -1, 3)),
            ((), (1, 1)),
            ((1,), ()),
            ((0, 2), (-1, 2)),
            ((0, 3), (3, 0, 2)),
        )
    ),
    Case("aten::reshape", (rand(4, 6).t(), (4, 6))),
    Case("aten::transpose.int", (rand(2, 3, 4), 1, -1)),
    Case("aten::transpose.int", (rand(2, 3), -2, 1)),
    Case("aten::permute", (rand(2, 3, 4), (2, 0, -2))),
    Case("aten::permute", (rand(), ())),
    *(
        Case("aten::slice.Tensor", (rand(4, 9), dim, start, end, step))
        for dim, start, end, step in (
            (1, 2, 5, 1),
            (-1, None, None, 1),
            (1, -3, None, 1),
            (1, 0, 2**63 - 1, 2),
            (0, 1, -1, 1),
            (-2, 0, 4, 3),
            (1, 7, 3, 1),
            (1, 20, 30, 1),
            (1, -30, 4, 1),
            (1, 8, 3, 2),
        )
    ),
    Case("aten::select.int", (rand(2, 3, 4), 1, -1)),
    Case("aten::select.int", (rand(3), 0, 2)),
    *(Case("aten::unsqueeze", (rand(2, 3), dim)) for dim in (0, 1, 2, -1, -3)),
    Case("aten::unsqueeze", (rand(), 0)),
    Case("aten::squeeze.dims", (rand(1, 3, 1), (0, -1))),
    Case("aten::squeeze.dims", (rand(1, 3, 1), (1,))),
    Case("aten::squeeze.dims", (rand(1, 3), ())),
    Case("aten::squeeze.dims", (rand(), (0,))),
    Case("aten::expand", (rand(3, 1), (3, 4))),
    Case("aten::expand", (rand(3, 1), (2, -1, 4))),
    Case("aten::expand", (rand(), (2, 3))),
    Case("aten::expand", (rand(3, 1), (3, 0))),
    Case("aten::split_with_sizes", (rand(2, 9), (2, 0, 7), -1)),
    Case("aten::split_with_sizes", (rand(4, 2), (4,), 0)),
)

JOINS = (
    Case("aten::cat", ((rand(2, 3), rand(2, 1), rand(2, 0)), -1)),
    Case("aten::cat", ((rand(2, 3), rand(1, 3, dtype=F64)), 0)),
    Case("aten::cat", ((rand(2, 3, dtype=BF16),), 0)),
    Case("aten::cat", ((rand(2, dtype=I32), rand(3, dtype=BF16)), 0)),
    Case("aten::stack", ((rand(2, 3), rand(2, 3)), 0)),
    Case("aten::stack", ((rand(2, 3, dtype=BF16), rand(2, 3, dtype=BF16)), -1)),
    Case("aten::stack", ((rand(), rand(), rand()), 0)),
    Case("aten::repeat", (rand(2, 3), (2, 1))),
    Case("aten::repeat", (rand(3, dtype=BF16), (2, 1, 4))),
    Case("aten::repeat", (rand(2, 3), (0, 2))),
    Case("aten::repeat", (rand(), ())),
    Case("aten::constant_pad_nd", (rand(2, 3), (1, 2), 0.5)),
    Case("aten::constant_pad_nd", (rand(2, 3, dtype=BF16), (1, 0, 0, 2), 0)),
    Case("aten::constant_pad_nd", (rand(4, 5, dtype=I32), (-1, 2, 1, -2), 7)),
    Case("aten::constant_pad_nd", (rand(4, 5, dtype=I64), (1, 2), 3.0)),
    Case("aten::constant_pad_nd", (rand(4, dtype=BOOL), (1, 2), 1.0)),
    Case("aten::constant_pad_nd", (rand(2, 3), (), 0)),
    Case("aten::roll", (rand(3, 4), (1,), (-1,))),
    Case("aten::roll", (rand(3, 4), (1, -2), (0, 1))),
    Case("aten::roll", (rand(3, 4), (5,), ())),
    Case("aten::flip", (rand(3, 4, dtype=BF16), (0, -1))),
    Case("aten::flip", (rand(3, 4), ())),
    Case("aten::constant_pad_nd", (rand(2, 3, 4, 5), (1, 2, 0, 1, -1, 3), -1.5)),
    Case("aten::constant_pad_nd", (rand(2, 0, dtype=F64), (1, 2), 3)),
    Case("aten::constant_pad_nd", (rand(2, 3, dtype=BOOL), (-2, -1), True)),
    Case("aten::roll", (rand(3, 4, 5, dtype=I8), (2, -7, 5), (0, 2, -3))),
    Case("aten::roll", (rand(5, 3).t(), (-4,), ())),
    Case("aten::roll", (rand(0, 3), (1,), (1,))),
    Case("aten::flip", (rand(2, 3, 4, dtype=I64), (1, -1))),
    Case("aten::flip", (rand(2, 0), (0,))),
    *(
        Case("aten::diagonal", (x, offset, first, second))
        for x in (rand(4, 5), rand(2, 3, 3, dtype=BF16))
        for offset in (0, 1, -2, 7)
        for first, second in ((0, 1), (-1, 0))
    ),
    *(
        Case("aten::unfold", (rand(3, 7), axis, size, step))
        for axis, size, step in ((1, 3, 2), (0, 3, 1), (-1, 0, 1))
    ),
    *(
        Case(f"aten::{op}", (x, diagonal))
        for op in ("tril", "triu")
        for x in (rand(4, 5), rand(2, 3, 3, dtype=BF16), rand(3, 4, dtype=BOOL))
        for diagonal in (0, 1, -2)
    ),
)

CREATION = (
    *(
        Case("aten::full", (size, value, dtype))
        for size, value, dtype in (
            ((2, 3), 0.1, F32),
            ((), 0.1, BF16),
            ((0, 2), 1, I64),
            ((3,), -1, I8),
            ((3,), True, BOOL),
            ((2,), float("-inf"), F16),
        )
    ),
    *(
        Case("aten::arange.start_step", arguments)
        for arguments in (
            (0, 5, 1, I64),
            (3, 17, 4, torch.uint8),
            (3, -9, -4, I8),
            (5, -3, -2, I64),
            (0, 1, 0.1, F32),
            (0.5, 2.6, 1, I64),
            (0.5, 2.6, 1, I32),
            (0, 64, 2, F32),
            (0, 7, 2, BF16),
            (3, 3, 1, I32),
            (0.0, 5.0, 1.5, F64),
        )
    ),
)

CASES = (*VIEWS, *JOINS, *CREATION)
