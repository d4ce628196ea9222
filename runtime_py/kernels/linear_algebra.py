"""Kernels of linear algebra: inverses, systems of equations, decompositions.

What has no inverse or does not converge is torch's error, as in eager.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvc.runtime.kernels.adapters import copied
from kvc.runtime.kernels.kernel import Kernel


def _copied_each(function: Callable[..., Sequence[Tensor]]) -> Kernel:
    """Return a kernel for a function of several results: compute, then copy."""

    def kernel(outs: tuple[Tensor, ...], *arguments: object) -> None:
        for out, result in zip(outs, function(*arguments), strict=True):
            out.copy_(result)

    return kernel


def _cholesky(x: Tensor, upper: bool) -> Tensor:
    made: Tensor = torch.linalg.cholesky(x, upper=upper)
    return made


def _solve(a: Tensor, b: Tensor, left: bool) -> Tensor:
    made: Tensor = torch.linalg.solve(a, b, left=left)
    return made


def _cholesky_told(x: Tensor, upper: bool, check_errors: bool) -> Sequence[Tensor]:
    made: Sequence[Tensor] = torch.linalg.cholesky_ex(
        x, upper=upper, check_errors=check_errors
    )
    return made


def _inverse_told(x: Tensor, check_errors: bool) -> Sequence[Tensor]:
    made: Sequence[Tensor] = torch.linalg.inv_ex(x, check_errors=check_errors)
    return made


def _solve_told(
    a: Tensor, b: Tensor, left: bool, check_errors: bool
) -> Sequence[Tensor]:
    made: Sequence[Tensor] = torch.linalg.solve_ex(
        a, b, left=left, check_errors=check_errors
    )
    return made


def _solve_triangular(
    a: Tensor, b: Tensor, upper: bool, left: bool, unitriangular: bool
) -> Tensor:
    made: Tensor = torch.linalg.solve_triangular(
        a, b, upper=upper, left=left, unitriangular=unitriangular
    )
    return made


def _singular_values(
    a: Tensor, full_matrices: bool, compute_uv: bool, driver: str | None
) -> Sequence[Tensor]:
    decompose = torch.ops.aten._linalg_svd
    made: Sequence[Tensor] = decompose(a, full_matrices, compute_uv, driver=driver)
    return made


KERNELS: dict[str, Kernel] = {
    "aten::_linalg_eigh": _copied_each(torch.ops.aten._linalg_eigh),
    "aten::_linalg_svd": _copied_each(_singular_values),
    "aten::linalg_cholesky": copied(_cholesky),
    "aten::linalg_cholesky_ex": _copied_each(_cholesky_told),
    "aten::linalg_det": copied(torch.linalg.det),
    "aten::linalg_householder_product": copied(torch.linalg.householder_product),
    "aten::linalg_inv": copied(torch.linalg.inv),
    "aten::linalg_inv_ex": _copied_each(_inverse_told),
    "aten::linalg_matrix_exp": copied(torch.linalg.matrix_exp),
    "aten::linalg_qr": _copied_each(torch.linalg.qr),
    "aten::linalg_slogdet": _copied_each(torch.linalg.slogdet),
    "aten::linalg_solve": copied(_solve),
    "aten::linalg_solve_ex": _copied_each(_solve_told),
    "aten::linalg_solve_triangular": copied(_solve_triangular),
}
