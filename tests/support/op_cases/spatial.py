# ruff: noqa: E501  a table reads best with one line a case
"""Cases of pooling, resizing and sampling, over two and three axes."""

import torch

from op_cases.case import Case, index, rand

BF16, F64 = torch.bfloat16, torch.float64
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _odd(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random floats, with NaN, infinities and a negative zero at some places."""
    x = rand(*shape, dtype=dtype)
    flat = x.view(-1)
    flat[:: 7 + flat.numel() // 20] = torch.nan
    flat[3 :: 11 + flat.numel() // 9] = torch.inf
    flat[5 :: 13 + flat.numel() // 9] = -torch.inf
    flat[1:3] = -0.0
    return x


def _grid(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return points in and around a plane, corners, far away, and nowhere."""
    points = rand(*shape, dtype=dtype)
    flat = points.view(-1)
    flat[:8] = torch.tensor([-1, 1, 1, -1, torch.nan, 0, 1e20, -torch.inf])
    return points


POOLS = (
    *(
        Case("aten::avg_pool2d", (x, *settings))
        for x in (rand(2, 3, 9, 11), rand(3, 8, 8), rand(1, 2, 8, 7, dtype=BF16))
        for settings in (
            ((2, 2), (), (0, 0), False, True, None),
            ((3, 2), (2, 1), (1, 0), True, True, None),
            ((3, 3), (2, 2), (1, 1), True, False, None),
            ((3, 3), (2, 2), (1, 1), False, True, 5),
        )
    ),
    Case("aten::avg_pool3d", (rand(2, 3, 5, 6, 7), (2, 3, 2), (), (0, 1, 1), True, True, None)),
    Case("aten::avg_pool3d", (rand(3, 5, 6, 7), (2, 2, 2), (1, 2, 2), (1, 0, 0), False, False, 3)),
    *(
        Case("aten::max_pool2d_with_indices", (x, *settings))
        for x in (rand(2, 3, 9, 11), rand(3, 8, 8), rand(1, 2, 8, 7, dtype=BF16))
        for settings in (
            ((2, 2), (), (0, 0), (1, 1), False),
            ((3, 2), (2, 1), (1, 1), (1, 2), True),
        )
    ),
    Case("aten::max_pool3d_with_indices", (rand(2, 3, 5, 6, 7), (2, 3, 2), (), (0, 1, 1), (1, 1, 1), True)),
    *(
        Case(f"aten::_adaptive_avg_pool{rank}d", (rand(2, 3, *(7, 9, 8)[:rank]), (4, 1, 9)[:rank]))
        for rank in (2, 3)
    ),
    *(
        Case(f"aten::adaptive_max_pool{rank}d", (rand(3, *(7, 9, 8)[:rank], dtype=F64), (4, 1, 8)[:rank]))
        for rank in (2, 3)
    ),
    # Wide enough for windows side by side; few windows that are wide.
    *(
        Case("aten::avg_pool2d", (rand(2, 3, 19, 26, dtype=dtype), *settings))
        for dtype in (torch.float32, F64, torch.int64)
        for settings in (
            ((3, 3), (1, 1), (1, 1), False, True, None),
            ((3, 3), (2, 2), (1, 1), True, False, None),
            ((19, 26), (), (0, 0), False, True, None),
            ((17, 23), (2, 3), (0, 0), False, True, -3),
        )
    ),
    *(
        Case("aten::avg_pool2d", (x, (3, 3), (1, 1), (1, 1), False, True, None))
        for x in (_odd(2, 9, 12), _odd(2, 9, 12, dtype=F64), rand(0, 2, 9, 12))
    ),
    *(
        Case("aten::max_pool2d_with_indices", (x, *settings))
        for x in (_odd(2, 2, 17, 21), _odd(2, 17, 21, dtype=F64), rand(0, 2, 17, 21))
        for settings in (
            ((2, 2), (2, 2), (0, 0), (1, 1), False),
            ((3, 3), (2, 2), (1, 1), (1, 1), True),
            ((3, 3), (1, 1), (1, 1), (2, 2), False),
            ((11, 13), (3, 4), (5, 6), (1, 1), False),
        )
    ),
    *(
        Case(f"aten::max_pool{rank}d_with_indices", (rand(2, *(4, 9, 13)[-rank:], dtype=dtype), *((each,) * rank for each in (3, 2, 1, 1)), False))
        for dtype in INTEGERS
        for rank in (2, 3)
    ),
    *(
        Case(f"aten::_adaptive_avg_pool{rank}d", (x, size))
        for rank, x in ((2, rand(2, 3, 21, 28)), (2, _odd(3, 21, 28, dtype=F64)), (3, rand(2, 3, 5, 21, 28)), (2, rand(0, 3, 21, 28)))
        for size in ((3, 1, 1)[:rank], (7,) * rank, (5,) * rank, (2, 28, 3)[:rank], (3, 0, 2)[:rank])
    ),
    *(
        Case(f"aten::adaptive_max_pool{rank}d", (x, size))
        for rank, x in ((2, _odd(2, 3, 21, 28)), (2, _odd(3, 21, 28, dtype=F64)), (3, _odd(2, 3, 5, 21, 28)), (2, rand(0, 3, 21, 28)))
        for size in ((1,) * rank, (7,) * rank, (5,) * rank, (3, 2, 9)[:rank])
    ),
)  # fmt: skip

RESIZES = (
    *(
        Case("aten::upsample_nearest2d", (rand(2, 3, 5, 7), size, *scales))
        for size, scales in (((10, 3), (None, None)), ((7, 11), (1.5, 1.6)))
    ),
    *(
        Case(f"aten::{op}", (rand(1, 2, 5, 7), size, corners, *scales))
        for op in ("upsample_bilinear2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
        for corners in (True, False)
        for size, scales in (((10, 3), (None, None)), ((7, 11), (1.5, 1.6)))
    ),
    *(
        Case("aten::upsample_nearest2d", (x, size, *scales))
        for x in (_odd(2, 9, 11)[None], rand(2, 1, 9, 11, dtype=torch.uint8), rand(0, 2, 9, 11), rand(1, 2, 9, 11, dtype=F64))
        for size, scales in (((18, 22), (2.0, 2.0)), ((9, 33), (1.04, 3.0)), ((19, 15), (None, None)))
    ),
    *(
        Case(f"aten::{op}", (x, size, corners, *scales))
        for op in ("upsample_bilinear2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
        for x in (_odd(1, 2, 9, 11), rand(1, 2, 9, 11, dtype=F64), rand(0, 2, 9, 11))
        for corners, size, scales in (
            (False, (18, 22), (2.0, 2.0)),
            (True, (18, 11), (None, None)),
            (False, (1, 3), (None, None)),
            (True, (1, 3), (None, None)),
        )
    ),
    # More than one band of rows.
    *(
        Case(f"aten::{op}", (rand(1, 2, 90, 100), size, False, None, None))
        for op in ("upsample_bilinear2d", "_upsample_bilinear2d_aa")
        for size in ((180, 200), (45, 400))
    ),
)  # fmt: skip

SAMPLES = (
    *(
        Case("aten::grid_sampler_2d", (rand(2, 3, 5, 6), rand(2, 4, 3, 2), mode, padding, corners))
        for mode in (0, 1, 2)
        for padding in (0, 1, 2)
        for corners in (True, False)
    ),
    *(
        Case("aten::grid_sampler_3d", (rand(1, 2, 4, 5, 3), rand(1, 2, 3, 2, 3), mode, 0, True))
        for mode in (0, 1)
    ),
    *(
        Case(f"aten::grid_sampler_{rank}d", (x, grid, mode, padding, corners))
        for rank, x, grid in (
            (2, rand(1, 2, 1, 6, dtype=F64), _grid(1, 9, 8, 2, dtype=F64)),
            (2, _odd(2, 2, 6, 7), _grid(2, 9, 8, 2)),
            (3, rand(2, 2, 1, 6, 7), _grid(2, 2, 5, 8, 3)),
            (3, _odd(1, 2, 3, 6, 7, dtype=F64), rand(1, 2, 5, 8, 3, dtype=F64)),
            (2, rand(0, 2, 6, 7), rand(0, 9, 8, 2)),
        )
        for mode in range(5 - rank)
        for padding in (0, 1, 2)
        for corners in (True, False)
    ),
)  # fmt: skip

BAGS = (
    *(
        Case("aten::_embedding_bag_forward_only", (rand(9, 4), chosen, offsets, mode, None, ended, padding))
        for mode in (0, 1, 2)
        for chosen, offsets, ended, padding in (
            (index(1, 8, 0, 3, 3), index(0, 2, 2), False, -1),
            (index(1, 8, 0, 3, 3), index(0, 3, 5), True, 3),
        )
    ),
    Case("aten::_embedding_bag_forward_only", (rand(9, 4), index(1, 8, 0), index(0, 1), 0, rand(3), False, -1)),
    *(
        Case("aten::_embedding_bag_forward_only", (x, index(1, 8, 0, dtype=d), index(0, 1, 1, 3, dtype=d), mode, None, True, -1))
        for x in (rand(9, 37, dtype=torch.float64), torch.where(rand(9, 4) > 1, torch.nan, 1.0))
        for d in (torch.int32, torch.int64)
        for mode in (0, 1, 2)
    ),
    Case("aten::_embedding_bag_forward_only", (rand(9, 4), index().long(), index(0, 0), 1, None, False, -1)),
)  # fmt: skip

CASES = (*POOLS, *RESIZES, *SAMPLES, *BAGS)
