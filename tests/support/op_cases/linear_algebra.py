# ruff: noqa: E501  a table reads best with one line a case
"""Cases of linear algebra."""

import torch
from torch import Tensor

from op_cases.case import Case, rand

F32, F64 = torch.float32, torch.float64


def _positive(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    x = rand(*shape, dtype=dtype)
    return x @ x.mT + 0.5 * torch.eye(shape[-1], dtype=dtype)


_SQUARES = tuple(_positive(*shape) for shape in ((3, 3), (2, 4, 4), (1, 2, 2, 2)))
_SINGULAR = torch.tensor(
    [[[1.0, 2, 4], [2, 4, 8], [1, 0, 1]], [[4, 1, 0], [1, 3, 1], [0, 1, 2]]]
)
_MIXED = rand(3, 33, 33, dtype=F64) + 6 * torch.eye(33, dtype=F64)
EDGES = (
    *(
        Case(f"aten::linalg_{op}", (x,))
        for op in ("det", "slogdet", "inv", "matrix_exp")
        for x in (_MIXED, rand(1, 1), rand(0, 3, 3), rand(2, 0, 0), rand(2, 3, 3, dtype=F64).mT)
    ),
    *(Case(f"aten::linalg_{op}", (_SINGULAR,)) for op in ("det", "slogdet")),
    *(Case(f"aten::linalg_{op}", (x, upper)) for op in ("cholesky",) for x in (_MIXED @ _MIXED.mT, rand(0, 2, 2)) for upper in (False, True)),
    Case("aten::linalg_cholesky_ex", (torch.tensor([[1.0, 2], [2, 1]]), False, False)),
    Case("aten::linalg_inv_ex", (torch.tensor([[1.0, 2], [2, 4]]), False)),
    Case("aten::linalg_solve_ex", (torch.tensor([[1.0, 2], [2, 4]]), rand(2), True, False)),
    *(
        Case("aten::linalg_solve", (a, b, left))
        for a, b, left in (
            (_MIXED, rand(33, 7, dtype=F64), True),
            (_MIXED[:, None], rand(2, 7, 33, dtype=F64), False),
            (_MIXED[0], rand(2, 3, 33, 1, dtype=F64), True),
            (_MIXED, rand(33, dtype=F64), True),
            (rand(0, 0), rand(0, 3), True),
            (rand(2, 3, 3), rand(2, 3, 0), True),
        )
    ),
    Case("aten::linalg_solve_triangular", (_MIXED, rand(2, 1, 33, 5, dtype=F64), True, True, False)),
    Case("aten::linalg_solve_triangular", (_MIXED[0], rand(2, 5, 33, dtype=F64), False, False, True)),
    *(
        Case("aten::linalg_qr", (x, mode))
        for x in (rand(3, 40, 17, dtype=F64), rand(17, 40), torch.tensor([[3.0, 1], [0, -2], [0, 0]]), -torch.eye(3), rand(2, 0), rand(3, 1))
        for mode in ("reduced", "complete", "r")
    ),
    Case("aten::linalg_householder_product", (rand(2, 9, 5, dtype=F64), rand(2, 5, dtype=F64))),
    *(Case("aten::linalg_matrix_exp", (rand(2, 9, 9, dtype=F64) * scale,)) for scale in (0, 1e-3, 1, 8)),
    Case("aten::linalg_matrix_exp", (torch.tensor([[0.0, 30], [0, 0]]),)),
)  # fmt: skip

CASES = (
    *EDGES,
    *(Case(f"aten::linalg_{op}", (x,)) for op in ("det", "inv", "slogdet") for x in _SQUARES),
    *(Case("aten::linalg_matrix_exp", (rand(*s),)) for s in ((3, 3), (2, 4, 4))),
    Case("aten::linalg_inv", (_positive(3, 3, dtype=F64),)),
    *(Case("aten::linalg_cholesky", (x, upper)) for x in _SQUARES for upper in (False, True)),
    *(Case("aten::linalg_inv_ex", (x, False)) for x in _SQUARES),
    *(Case("aten::linalg_cholesky_ex", (x, True, False)) for x in _SQUARES),
    Case("aten::linalg_cholesky_ex", (-_SQUARES[1], False, False)),
    Case("aten::linalg_solve_ex", (_SQUARES[1], rand(4, 5), True, False)),
    Case("aten::linalg_solve_ex", (_SQUARES[0], rand(5, 2, 3), False, True)),
    Case("aten::linalg_solve", (_SQUARES[0], rand(3), True)),
    Case("aten::linalg_solve", (_SQUARES[1], rand(2, 4), True)),
    Case("aten::linalg_solve", (_SQUARES[1], rand(4, 5), True)),
    Case("aten::linalg_solve", (_SQUARES[0], rand(5, 1, 2, 3), False)),
    *(
        Case("aten::linalg_solve_triangular", (rand(2, 3, 3) + 2 * torch.eye(3), b, upper, left, unit))
        for b, left in ((rand(3, 4), True), (rand(2, 4, 3), False))
        for upper in (False, True)
        for unit in (False, True)
    ),
    *(
        Case("aten::linalg_qr", (rand(*shape), mode))
        for shape in ((4, 3), (2, 3, 4))
        for mode in ("reduced", "complete", "r")
    ),
    Case("aten::linalg_householder_product", (rand(4, 3), rand(3))),
    Case("aten::linalg_householder_product", (rand(2, 4, 4), rand(2, 2))),
    *(
        Case("aten::_linalg_svd", (rand(*shape), full, vectors, None))
        for shape in ((4, 3), (2, 3, 4))
        for full in (False, True)
        for vectors in (False, True)
    ),
    *(Case("aten::_linalg_eigh", (x, uplo, True)) for x in _SQUARES for uplo in "LU"),
    Case("aten::_linalg_eigh", (_SQUARES[1], "L", False)),
)  # fmt: skip
