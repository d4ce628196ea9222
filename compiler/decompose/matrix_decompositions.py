"""Decompositions of kvc's own for linear algebra that it has in other operators.

In: a call of such an operator while it is traced. Out: its result, computed by
operators that kvc has; NotImplemented where that cannot be, which leaves the call.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

_aten = torch.ops.aten
_LEFT: object = NotImplemented  # the call as it is


def _cholesky(self: Tensor, upper: bool = False) -> Tensor:
    made: Tensor = _aten.linalg_cholesky.default(self, upper=upper)
    return made


def _cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """Solve x y = self, where the triangle of input2 is a factor of x."""
    lower = input2.mT if upper else input2
    half = torch.linalg.solve_triangular(lower, self, upper=False)
    made: Tensor = torch.linalg.solve_triangular(lower.mT, half, upper=True)
    return made


def _cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    identity = torch.eye(self.shape[-1], dtype=self.dtype)
    return _cholesky_solve(identity.expand(self.shape), self, upper)


def _pseudoinverse(
    self: Tensor,
    *,
    atol: Tensor | None = None,
    rtol: Tensor | None = None,
    hermitian: bool = False,
) -> object:
    """Invert the singular values that are not small."""
    sizes: Sequence[int | torch.SymInt] = self.shape
    if 0 in sizes:
        return self.new_zeros((*sizes[:-2], sizes[-1], sizes[-2]))
    if not all(isinstance(size, int) for size in sizes):
        return _LEFT
    if rtol is None:
        usual = torch.full((), torch.finfo(self.dtype).eps * max(self.shape[-2:]))
        rtol = usual if atol is None else torch.where(atol > 0, 0.0, usual)
    if atol is None:
        atol = torch.zeros(())
    if hermitian:
        values, right = torch.linalg.eigh(self)
        left, lengths = right.mT, values.abs()
    else:
        found, values, turned = torch.linalg.svd(self, full_matrices=False)
        left, right, lengths = found.mT, turned.mT, values
    greatest = lengths.amax(-1, keepdim=True)
    least = torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * greatest)
    inverted = torch.where(lengths > least, values.reciprocal(), 0.0)
    return (right * inverted.unsqueeze(-2)) @ left


MATRICES: Mapping[torch._ops.OperatorBase, Callable[..., object]] = {
    _aten.cholesky.default: _cholesky,
    _aten.cholesky_inverse.default: _cholesky_inverse,
    _aten.cholesky_solve.default: _cholesky_solve,
    _aten.linalg_pinv.atol_rtol_tensor: _pseudoinverse,
}
