# ruff: noqa: E501  a table reads best with one line a case
"""Cases of pooling, resizing and sampling, over two and three axes."""

import torch

from op_cases.case import Case, index, rand

BF16, F64 = torch.bfloat16, torch.float64

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
