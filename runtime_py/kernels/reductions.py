"""Kernels that reduce, rank or accumulate along axes; results are fresh.

If a torch function takes the dtype in which to add, the kernel passes the dtype of
`out`. The operator's signature has no such argument, since the declared type of the
result tells the dtype.
"""

import torch
from torch import Tensor

from kvc.runtime.kernels.kernel import Kernel, copied, into


def _sum(out: Tensor, x: Tensor, dim: tuple[int, ...] | None, keepdim: bool) -> None:
    torch.sum(x, dim, keepdim, dtype=out.dtype, out=out)


def _mean(out: Tensor, x: Tensor, dim: tuple[int, ...] | None, keepdim: bool) -> None:
    torch.mean(x, dim, keepdim, dtype=out.dtype, out=out)


def _prod(out: Tensor, x: Tensor, dim: int, keepdim: bool) -> None:
    torch.prod(x, dim, keepdim, dtype=out.dtype, out=out)


def _prod_of_all(out: Tensor, x: Tensor) -> None:
    out.copy_(torch.prod(x, dtype=out.dtype))


def _vector_norm(
    out: Tensor, x: Tensor, order: float, dim: tuple[int, ...] | None, keepdim: bool
) -> None:
    torch.linalg.vector_norm(x, order, dim, keepdim, dtype=out.dtype, out=out)


def _cumsum(out: Tensor, x: Tensor, dim: int) -> None:
    torch.cumsum(x, dim, dtype=out.dtype, out=out)


def _cumprod(out: Tensor, x: Tensor, dim: int) -> None:
    torch.cumprod(x, dim, dtype=out.dtype, out=out)


def _var(
    out: Tensor,
    x: Tensor,
    dim: tuple[int, ...] | None,
    correction: float | None,
    keepdim: bool,
) -> None:
    torch.var(x, dim, correction=correction, keepdim=keepdim, out=out)


def _sort(out: tuple[Tensor, Tensor], x: Tensor, dim: int, descending: bool) -> None:
    torch.sort(x, stable=True, dim=dim, descending=descending, out=out)


def _var_mean(
    out: tuple[Tensor, Tensor],
    x: Tensor,
    dim: tuple[int, ...] | None,
    correction: float | None,
    keepdim: bool,
) -> None:
    found = torch.var_mean(x, dim, correction=correction, keepdim=keepdim)
    for to, each in zip(out, found, strict=True):
        to.copy_(each)


KERNELS: dict[str, Kernel] = {
    "aten::all": into(torch.all),
    "aten::all.dim": into(torch.all),
    "aten::all.dims": into(torch.all),
    "aten::amax": into(torch.amax),
    "aten::amin": into(torch.amin),
    "aten::any": into(torch.any),
    "aten::any.dim": into(torch.any),
    "aten::any.dims": into(torch.any),
    "aten::argmax": into(torch.argmax),
    "aten::argmin": into(torch.argmin),
    "aten::cummax": into(torch.cummax),
    "aten::cummin": into(torch.cummin),
    "aten::cumprod": _cumprod,
    "aten::cumsum": _cumsum,
    "aten::kthvalue": into(torch.kthvalue),
    "aten::linalg_vector_norm": _vector_norm,
    "aten::logcumsumexp": into(torch.logcumsumexp),
    "aten::max.dim": into(torch.max),
    "aten::mean.dim": _mean,
    "aten::median": copied(torch.median),
    "aten::median.dim": into(torch.median),
    "aten::nanmedian": copied(torch.nanmedian),
    "aten::nanmedian.dim": into(torch.nanmedian),
    "aten::min.dim": into(torch.min),
    "aten::prod": _prod_of_all,
    "aten::prod.dim_int": _prod,
    "aten::sort": _sort,
    "aten::sum.dim_IntList": _sum,
    "aten::topk": into(torch.topk),
    "aten::var.correction": _var,
    "aten::var_mean.correction": _var_mean,
}
