"""Kernels of linear algebra: products, inverses, systems, decompositions.

For a singular matrix, or if an iteration does not converge, torch's error is raised, as
in eager.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from kvc.runtime.kernels.kernel import Kernel, copied, into


def _copied_each(function: Callable[..., Sequence[Tensor]]) -> Kernel:
    """Return a kernel that copies the several results of `function` into `out`."""

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


def _matmul(out: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dim() == 1 and b.dim() == 2:
        # Here torch.matmul would resize `out` to one row first, then squeeze it.
        torch.mm(a.unsqueeze(0), b, out=out.unsqueeze(0))
    else:
        torch.matmul(a, b, out=out)


def _linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if bias is None:
        _matmul(out, x, weight.t())
    elif x.dim() == 2:
        torch.addmm(bias, x, weight.t(), out=out)
    elif x.dim() == 3 and x.is_contiguous():
        # As in eager; torch's linear with out= multiplies and adds in two steps.
        rows, results = x.flatten(0, 1), out.flatten(0, 1)
        torch.addmm(bias, rows, weight.t(), out=results)
    else:
        out.copy_(linear(x, weight, bias))


def _addmm(
    out: Tensor, x: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float
) -> None:
    torch.addmm(x, a, b, beta=beta, alpha=alpha, out=out)


def _convolution(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> None:
    none = (0,) * len(stride)  # output padding, for transposed convolutions only
    out.copy_(
        torch.convolution(
            x, weight, bias, stride, padding, dilation, False, none, groups
        )
    )


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
    "aten::_cdist_forward": copied(torch.ops.aten._cdist_forward),
    "aten::addmm": _addmm,
    "aten::bmm": into(torch.bmm),
    "aten::conv_transpose1d": copied(torch.conv_transpose1d),
    "aten::conv_transpose2d.input": copied(torch.conv_transpose2d),
    "aten::conv_transpose3d.input": copied(torch.conv_transpose3d),
    "aten::convolution": _convolution,
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::mm": into(torch.mm),
}
