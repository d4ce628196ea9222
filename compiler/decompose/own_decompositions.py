"""kvc's own decompositions of operators that torch keeps or decomposes wrongly.

In: a call of an operator while it is traced. Out: the result of the call, computed by
operators that kvc has kernels for; or NotImplemented, with which torch keeps the call.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch._decomp.decompositions import isin
from torch.nn.functional import leaky_relu, linear

from kvc.compiler.decompose.norm_statistics import (
    batch_statistics,
    group_norm_and_statistics,
    layer_norm_and_statistics,
)
from kvc.compiler.decompose.renormed import embedding_renorm
from kvc.compiler.decompose.strided import as_strided, as_strided_scatter

_aten = torch.ops.aten
_LEFT: object = NotImplemented  # keeps the call
_MOST_ROWS = 256  # each row becomes an operator of its own


def _addbmm(
    self: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    if not self.is_floating_point():  # torch truncates them
        beta, alpha = int(beta), int(alpha)
    product = torch.bmm(batch1, batch2).sum(0, dtype=self.dtype) * alpha
    return product if beta == 0 else self * beta + product


def _average_planes(self: Tensor, output_size: Sequence[int]) -> Tensor:
    """Average planes to a size; unlike torch's decomposition, for any strides."""
    if all(size == 1 for size in output_size):
        return self.mean((-1, -2), keepdim=True)
    pooled: Tensor = _aten._adaptive_avg_pool2d.default(self, output_size)
    return pooled


def _average_volumes(self: Tensor, output_size: Sequence[int]) -> Tensor:
    if all(size == 1 for size in output_size):
        return self.mean((-1, -2, -3), keepdim=True)
    pooled: Tensor = _aten._adaptive_avg_pool3d.default(self, output_size)
    return pooled


def _bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return the bilinear product of two inputs, plus a bias.

    Output o is the sum of input1[i] * weight[o, i, j] * input2[j] over all i and j.
    """
    outputs, first, second = weight.shape
    rows = linear(input2, weight.reshape(outputs * first, second))
    rows = rows.reshape(*input2.shape[:-1], outputs, first)
    made = (rows * input1.unsqueeze(-2)).sum(-1, dtype=rows.dtype)
    return made if bias is None else made + bias


def _rrelu(
    self: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> object:
    """Apply a leaky ReLU with the mean slope, as torch does outside of training."""
    if training:
        return _LEFT
    return leaky_relu(self, (lower + upper) / 2)


def _dropout(input: Tensor, p: float, train: bool) -> object:
    """Return the input itself where nothing is dropped, as torch's kernel does."""
    return _LEFT if train and p else input


def _pairwise_distances(self: Tensor, p: float = 2) -> object:
    """Return the distances of all pairs of rows, in the order of torch's `pdist`."""
    count: int | torch.SymInt = self.shape[0]
    if not isinstance(count, int) or count > _MOST_ROWS:
        return _LEFT
    if count < 2 or 0 in self.shape[1:]:
        return self.new_zeros((count * (count - 1) // 2,))
    rows, columns = _pairs([(i + 1, count) for i in range(count)], torch.int64)
    if p == math.inf:  # `pdist` takes NaN as the greatest value, `cdist` ignores it
        return (self[rows] - self[columns]).abs().amax(-1)
    # Mode 2 uses no matrix product, which loses digits for close rows.
    found: Tensor = _aten._cdist_forward.default(self, self, p, 2)
    return found[rows, columns]


def _upper_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype = torch.int64,
    **_: object,
) -> object:
    """Return the rows and columns of the elements on and above a diagonal."""
    if row > _MOST_ROWS:
        return _LEFT
    return _pairs([(max(0, i + offset), col) for i in range(row)], dtype)


def _lower_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype = torch.int64,
    **_: object,
) -> object:
    """Return the rows and columns of the elements on and below a diagonal."""
    if row > _MOST_ROWS:
        return _LEFT
    return _pairs([(0, min(col, i + offset + 1)) for i in range(row)], dtype)


def _pairs(columns: Sequence[tuple[int, int]], dtype: torch.dtype) -> Tensor:
    """Return the pairs (row, column) of the elements of a part of a matrix, [2, pairs].

    For each row, `columns` has the range [start, end) of the row's columns in the part.
    """
    some = [(i, start, end) for i, (start, end) in enumerate(columns) if start < end]
    if not some:
        return torch.zeros((2, 0), dtype=dtype)
    rows = torch.cat([torch.full((end - start,), i) for i, start, end in some])
    places = torch.cat([torch.arange(start, end) for _, start, end in some])
    return torch.stack([rows, places]).to(dtype)


def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the elements of `source`, in order, where `mask` is true."""
    shape = torch.broadcast_shapes(self.shape, mask.shape)  # type: ignore[no-untyped-call]
    self, mask = self.expand(shape), mask.expand(shape)
    flat = mask.reshape(-1)
    places = (flat.to(torch.int64).cumsum(0) - 1).clamp_min(0)
    given = source.reshape(-1)
    # No value is left; the 0 is for elements where the mask is false.
    if 0 in source.shape:
        given, places = self.new_zeros(1), torch.where(flat, 1, 0)
    return torch.where(mask, given[places].reshape(self.shape), self)


def _unsafe_masked_index(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float
) -> Tensor:
    """Gather elements by indices; where the mask is false, return `fill`.

    Negative indices count from the end, and indices out of bounds are clamped. If an
    indexed axis has no elements, all results are `fill`.
    """
    sizes: Sequence[int] = self.shape
    if any(type(size) is int and size == 0 for size in sizes):
        picked = [
            i < len(indices) and indices[i] is not None for i in range(self.dim())
        ]
        sizes = [n or int(one) for n, one in zip(sizes, picked, strict=True)]
        self = self.new_full(sizes, fill)
    within = [
        None if index is None else index.clamp(-size, size - 1)
        for index, size in zip(indices, sizes, strict=False)
    ]
    found: Tensor = _aten.index.Tensor(self, within)
    return found.masked_fill(mask.logical_not(), fill)


def _repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> object:
    """Return each index i `repeats[i]` times, if `output_size` is given.

    If the repeats add up to another size at run time, or a repeat is negative, all
    indices are out of range.
    """
    if output_size is None:
        return _LEFT
    wrong = (repeats < 0).any() | (repeats.sum() != output_size)
    places = torch.arange(output_size)
    found = torch.searchsorted(repeats.cumsum(0), places, right=True)
    return torch.where(wrong, repeats.shape[0], found).to(repeats.dtype)


def _copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Return a tensor's content in the dtype and shape of another, `self`."""
    return src.to(self.dtype).expand(self.shape).clone()


def _copy_strided(a: Tensor, stride: Sequence[int]) -> object:
    """Copy a tensor to memory without gaps, with the axes in the order of `stride`."""
    order = sorted(range(a.dim()), key=stride.__getitem__, reverse=True)
    copied = a.permute(order).clone(memory_format=torch.contiguous_format)
    copied = copied.permute([order.index(axis) for axis in range(a.dim())])
    return copied if copied.stride() == tuple(stride) else _LEFT


def _windows(self: Tensor, dimension: int, size: int, step: int) -> object:
    """Return the result of `unfold` for a tensor without axes: a single window."""
    return _LEFT if self.dim() else self.reshape(1)[:size]


def _windows_copied(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    windows = (
        self.unfold(dimension, size, step) if self.dim() else self.reshape(1)[:size]
    )
    return windows.clone()


def _diagonal_scatter(
    self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> object:
    """Write `src` to a diagonal of the axes `dim1` and `dim2`."""
    sizes: Sequence[int | torch.SymInt] = self.shape
    rows, columns = sizes[dim1], sizes[dim2]
    if not isinstance(rows, int) or not isinstance(columns, int):
        return _LEFT
    first, other = max(-offset, 0), max(offset, 0)
    count = max(min(rows - first, columns - other), 0)
    places = torch.arange(first, first + count), torch.arange(other, other + count)
    planes = self.movedim((dim1, dim2), (0, 1))
    made = planes.index_put(places, src.movedim(-1, 0).to(self.dtype))
    return made.movedim((0, 1), (dim1, dim2))


def _put(
    self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    """Write elements at their indices in the flattened tensor."""
    places, values = index.reshape(-1), source.reshape(-1)
    return self.reshape(-1).index_put((places,), values, accumulate).reshape(self.shape)


def _index_reduce(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Reduce the slices of `source` into slices of `self`.

    `index` gives, for each slice of `source` along `dim`, the index of the slice of
    `self`.
    """
    if not self.dim():
        made = _index_reduce(
            self[None], 0, index.reshape(-1), source.reshape(-1), reduce,
            include_self=include_self,
        )  # fmt: skip
        return made[0]
    shape = [-1 if i == dim % self.dim() else 1 for i in range(self.dim())]
    places = index.reshape(shape).expand(source.shape)
    return self.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def _search_sorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> object:
    """Search in sorted values, after applying `sorter` to them.

    `side="right"` becomes `right=True`.
    """
    if side is None and sorter is None:
        return _LEFT
    rows = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    return torch.searchsorted(
        rows, self, out_int32=out_int32, right=right or side == "right"
    )


def _search_number(
    sorted_sequence: Tensor,
    self: float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Search for a number in sorted values, without truncating its fraction.

    The number and the values are converted to their common dtype.
    """
    common = torch.result_type(sorted_sequence, self)
    kind = torch.int64 if isinstance(self, int) else torch.float64
    number = torch.full((), self, dtype=kind).to(common)
    kept = {"out_int32": out_int32, "right": right, "side": side, "sorter": sorter}
    return torch.searchsorted(sorted_sequence.to(common), number, **kept)  # type: ignore[arg-type]  # by name


def _isin(
    elements: Tensor,
    test_elements: Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Tell which elements are among the test elements; a NaN never is.

    torch's decomposition searches sorted test elements, and a NaN among them makes the
    search miss elements.
    """
    nan, tests = test_elements.isnan(), test_elements
    if tests.is_floating_point() and tests.numel():
        tests = torch.where(nan, torch.where(nan, torch.inf, tests).amin(), tests)
    found: Tensor = isin(elements, tests) & ~nan.all()
    return ~found if invert else found


def _softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """Compute the gradient of a softmax in the order of torch's kernel.

    The product of gradient and output is summed first.
    """
    sums = (grad_output * output).sum(dim, keepdim=True)
    return ((grad_output - sums) * output).to(input_dtype)


def _assert_async(self: Tensor) -> None:
    _aten._assert_async.msg(self, "a tensor that has to be true is not")


OWN: Mapping[torch._ops.OperatorBase, Callable[..., object]] = {
    _aten.copy.default: _copy,
    _aten._assert_async.default: _assert_async,
    _aten.addbmm.default: _addbmm,
    _aten.adaptive_avg_pool2d.default: _average_planes,
    _aten.adaptive_avg_pool3d.default: _average_volumes,
    _aten.as_strided.default: as_strided,
    _aten.as_strided_copy.default: as_strided,
    _aten.as_strided_scatter.default: as_strided_scatter,
    _aten._native_batch_norm_legit.no_stats: batch_statistics,
    _aten.bilinear.default: _bilinear,
    _aten.dropout.default: _dropout,
    _aten.diagonal_scatter.default: _diagonal_scatter,
    _aten.embedding_renorm.default: embedding_renorm,
    _aten.index_reduce.default: _index_reduce,
    _aten.isin.Tensor_Tensor: _isin,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.native_group_norm.default: group_norm_and_statistics,
    _aten.native_layer_norm.default: layer_norm_and_statistics,
    _aten.put.default: _put,
    _aten._pdist_forward.default: _pairwise_distances,
    _aten.repeat_interleave.Tensor: _repeat_interleave,
    _aten.rrelu.default: _rrelu,
    _aten.searchsorted.Scalar: _search_number,
    _aten.searchsorted.Tensor: _search_sorted,
    _aten.tril_indices.default: _lower_indices,
    _aten.triu_indices.default: _upper_indices,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten.unfold.default: _windows,
    _aten._unsafe_masked_index.default: _unsafe_masked_index,
    torch.ops.prims.copy_strided.default: _copy_strided,
    _aten.unfold_copy.default: _windows_copied,
}
