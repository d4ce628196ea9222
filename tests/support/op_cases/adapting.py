"""Cases of adapters: no row, one, several; ranks that are all, some or none in use."""

import torch

from op_cases.case import Case, index, rand

CASES = tuple(
    Case(
        "kvc::adapted",
        (
            *(rand(*lead, width), rand(*lead, 24)),
            *(a, rand(3, 5 if a is not None else 24, width, dtype=dtype)),
            factors,
            *(index(0, 5, 3), index(*chosen), rand(len(chosen))),
            *(gain, offset),
        ),
    )
    for width in (40, 3, 71, 0)
    for dtype in (torch.float32, torch.int8)
    for a in (rand(3, 5, 24, dtype=dtype), None)
    for factors in (
        *([None] if dtype is torch.float32 else []),
        rand(3, 5 if a is not None else 24) / 99,
    )
    for gain, offset in (
        (None, None),
        (rand(3, width), None),
        (rand(3, width), rand(3, width)),
    )
    for lead, chosen in (
        ((2, 1), [2, 1]),
        ((3, 40), [1, 0, 2]),
        ((1, 2, 3), [1]),
        ((4,), [0, 1, 1, 2]),
        ((0, 2), []),
        ((2, 0), [1, 1]),
        ((1, 0), [2]),
    )
)
