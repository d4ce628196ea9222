"""The table of decompositions of a trace.

torch's own table decomposes most composite operators. Operators with fast kernels stay
whole. View operators that copy become views and clones. Some operators that torch keeps
are decomposed too, since kvc has no kernel for them.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._pytree import tree_map_only

from kvc.compiler.decompose.complex_numbers import MAKERS, with_complex
from kvc.compiler.decompose.margin_losses import MARGINS
from kvc.compiler.decompose.own_decompositions import OWN

# Decompositions for tensors without axes, which torch treats as rows of one.


_aten = torch.ops.aten
_LEFT: object = NotImplemented  # keeps the call


def _topk(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> object:
    if self.dim():
        return _LEFT
    return self.clone(), torch.zeros((), dtype=torch.int64)


def _flip(self: Tensor, dims: list[int]) -> object:
    return _LEFT if self.dim() else self.clone()


def _gather(
    self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
) -> object:
    if 0 in index.shape:  # of any dtype and rank
        return self.new_zeros(index.shape)
    if self.dim() == index.dim():
        return _LEFT
    return _row(self).gather(dim, _row(index)).reshape(index.shape)


def _scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> object:
    if self.dim() == index.dim() == src.dim():
        return _LEFT
    return _row(self).scatter(dim, _row(index), _row(src)).reshape(self.shape)


def _scatter_number(
    self: Tensor, dim: int, index: Tensor, value: complex, *, reduce: str
) -> Tensor:
    numbers = self.new_full(index.shape, value)
    made: Tensor = _aten.scatter.reduce(self, dim, index, numbers, reduce=reduce)
    return made


def _take(self: Tensor, index: Tensor) -> Tensor:
    """Take elements by their indices in the flattened tensor."""
    made: Tensor = _aten.index.Tensor(self.reshape(-1), [index.reshape(-1)])
    return made.reshape(index.shape)


def _row(x: Tensor) -> Tensor:
    return x if x.dim() else x.reshape(1)


WITHOUT_AXES: Mapping[torch._ops.OperatorBase, Callable[..., object]] = {
    _aten.flip.default: _flip,
    _aten.gather.default: _gather,
    _aten.scatter.src: _scatter,
    _aten.scatter.value_reduce: _scatter_number,
    _aten.take.default: _take,
    _aten.topk.default: _topk,
}


# Decompositions of linear algebra into other operators of the table.


def _cholesky(self: Tensor, upper: bool = False) -> Tensor:
    made: Tensor = _aten.linalg_cholesky.default(self, upper=upper)
    return made


def _cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """Solve x y = self for y, where input2 is a triangular factor of x."""
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
    """Return the pseudoinverse; singular values up to a tolerance count as 0."""
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


# Equally spaced numbers, computed as in torch's kernels.


_CPU = torch.device("cpu")
# Splits a float64: x times this, minus that, leaves the first 26 digits of x.
_HALF = 2.0**27 + 1


def _evenly_spaced(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    **_: object,
) -> Tensor:
    """Compute a linspace; for an integer dtype, truncate `start` and `end` first."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        made: Tensor = torch._refs.linspace(start, end, steps, dtype=dtype, device=_CPU)
        return made
    first, last = (_whole(each, dtype) for each in (start, end))
    step = (last - first) / max(steps - 1, 1)
    place = torch.arange(steps, dtype=torch.float64)
    rising = _fused(step, place, first)
    falling = _fused(-step, steps - 1 - place, last)
    half = steps // 2 if steps > 1 else 1
    return torch.where(place < half, rising, falling).to(dtype)


def _fused(step: float | Tensor, place: Tensor, start: float | Tensor) -> Tensor:
    """Return start + step * place, rounded once.

    The step is split into two numbers of few digits, whose products are exact (Dekker
    1971); `lost` is the rounding error of the first sum (Knuth, TwoSum).
    """
    large = step * _HALF
    upper = large - (large - step)
    product, rest = upper * place, (step - upper) * place
    made = start + product
    given = made - start
    lost = (start - (made - given)) + (product - given)
    return made + (lost + rest)


def _whole(number: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """Truncate a number to an integer, and return it as float64."""
    if isinstance(number, Tensor):
        return number.to(dtype).to(torch.float64)
    return float(int(number))


SPACED: Mapping[torch._ops.OperatorBase, Callable[..., object]] = {
    _aten.linspace.default: _evenly_spaced,
    _aten.linspace.Tensor_Tensor: _evenly_spaced,
    _aten.linspace.Tensor_Scalar: _evenly_spaced,
    _aten.linspace.Scalar_Tensor: _evenly_spaced,
}


# The table of decompositions.


Decomposition = Callable[..., object]

# Operators that stay whole. Full decomposition makes two to three times the nodes and
# runs 1.2 to 1.3 times slower (measured on a 30-layer decoder).
KEPT_WHOLE = (
    _aten.scaled_dot_product_attention.default,
    _aten.linear.default,
    _aten.rms_norm.default,
    _aten.layer_norm.default,
    _aten.group_norm.default,
    _aten.silu.default,
    _aten.index_copy.default,
    _aten.index_add.default,
    _aten.index_fill.int_Scalar,
    _aten.index_fill.int_Tensor,
    _aten.select_scatter.default,
    _aten.roll.default,
    _aten.matmul.default,
    _aten.softmax.int,
    _aten.log_softmax.int,
    _aten.split.Tensor,
    _aten.transpose.int,
    _aten.upsample_bilinear2d.vec,
    _aten.upsample_nearest2d.vec,
    # Their parts check the results of inner operators.
    _aten.linalg_cholesky.default,
    _aten.linalg_inv.default,
    _aten.linalg_solve.default,
    _aten.linalg_solve_ex.default,
)
_TAKEN_APART = (
    _aten._addmm_activation,
    _aten.addmv,
    _aten.bucketize.Scalar,
    _aten.dist,
    _aten.narrow_copy,
    _aten.upsample_bicubic2d,
    _aten.upsample_trilinear3d,
)
_VIEWS = (
    _aten.alias,
    _aten.diagonal,
    _aten.expand,
    _aten.permute,
    _aten.select,
    _aten.slice,
    _aten.split,
    _aten.split_with_sizes,
    _aten.squeeze,
    _aten.t,
    _aten.transpose,
    _aten.unbind,
    _aten.unfold,
    _aten.unsqueeze,
    _aten.view,
)


def decompositions() -> dict[torch._ops.OperatorBase, Decomposition]:
    """Return the decomposition of each operator that does not stay whole."""
    return dict(_table())


@functools.cache
def _table() -> dict[torch._ops.OperatorBase, Decomposition]:
    """Return the table; making it takes 0.1 s."""
    table = torch.export.default_decompositions()
    for op in KEPT_WHOLE:
        table.pop(op, None)  # type: ignore[no-untyped-call]
    kept = dict(table.items())  # type: ignore[no-untyped-call]
    more = get_decompositions(_TAKEN_APART)
    own = {**OWN, **SPACED, **MARGINS, **WITHOUT_AXES, **MATRICES, **MAKERS}
    return with_complex({**more, **dict(_copies()), **kept, **own})


def _copies() -> Iterator[tuple[torch._ops.OperatorBase, Decomposition]]:
    for view in _VIEWS:
        copy = getattr(_aten, f"{view.__name__}_copy")
        overloads: list[str] = copy.overloads()
        for overload in overloads:
            if hasattr(view, overload):
                yield getattr(copy, overload), _cloned(getattr(view, overload))


def _cloned(view: Decomposition) -> Decomposition:
    """Return a function that copies a view's result, without gaps in memory."""
    whole = functools.partial(torch.clone, memory_format=torch.contiguous_format)

    def copy(*args: object, **kwargs: object) -> object:
        return tree_map_only(Tensor, whole, view(*args, **kwargs))

    return copy
