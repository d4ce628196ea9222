"""Shape rules of ops that compute: elementwise, reductions, products, gathers.

Each takes an op's arguments with tensors given as static `TensorType`s and returns
the dtype and shape of each result; a dtype of None leaves it to the declaration.
Rules of views are in `views.py`.
"""

import math
from collections.abc import Sequence

from kvc.schema.dtypes import DType
from kvc.schema.ops.spec import Concrete, Inferred, ShapeMismatch
from kvc.schema.types import TensorType

Shape = tuple[int, ...]
Rule = tuple[Inferred, ...]


def require(condition: bool, text: str) -> None:
    """Raise `ShapeMismatch` with `text` unless the condition holds."""
    if not condition:
        raise ShapeMismatch(text)


def shape_of(tensor: TensorType) -> Shape:
    """Return the dims of a static type."""
    return tensor.dims  # type: ignore[return-value]


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from 0."""
    require(-rank <= axis < rank, f"axis {axis} of a tensor with {rank} dims")
    return axis % rank


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the common shape under numpy's broadcasting."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            require(size == result[i] or 1 in (size, result[i]), f"cannot broadcast {shapes}")
            result[i] = size if result[i] == 1 else result[i]
    return tuple(result)


def broadcast(*arguments: Concrete) -> Rule:
    """Elementwise over all tensors among the arguments."""
    tensors = [a for a in arguments if isinstance(a, TensorType)]
    return ((None, broadcast_shapes([shape_of(t) for t in tensors])),)


def compare(*arguments: Concrete) -> Rule:
    """Elementwise with a boolean result."""
    return ((DType.BOOL, broadcast(*arguments)[0][1]),)


def where(condition: TensorType, self: Concrete, other: Concrete) -> Rule:
    """Select by a boolean condition."""
    require(condition.dtype is DType.BOOL, "the condition is not boolean")
    return broadcast(condition, self, other)


def same(self: TensorType, *_: Concrete) -> Rule:
    """Keep dtype and shape of the first operand."""
    return ((self.dtype, shape_of(self)),)


def same_shape(self: TensorType, *_: Concrete) -> Rule:
    """Keep the shape of the first operand, any dtype."""
    return ((None, shape_of(self)),)


def cast(self: TensorType, dtype: DType) -> Rule:
    """Keep the shape, take the dtype asked for."""
    return ((dtype, shape_of(self)),)


def masked_fill(self: TensorType, mask: TensorType, _: Concrete) -> Rule:
    """Replace elements under a mask that broadcasts to the operand."""
    require(mask.dtype is DType.BOOL, "the mask is not boolean")
    shape = shape_of(self)
    require(broadcast_shapes([shape, shape_of(mask)]) == shape, "mask larger than operand")
    return same(self)


def _reduced(shape: Shape, dims: Sequence[int], keepdim: bool) -> Shape:
    axes = {axis_of(dim, len(shape)) for dim in dims} if dims else set(range(len(shape)))
    if keepdim:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def reduce(
    self: TensorType,
    dim: int | tuple[int, ...] | None = None,
    keepdim: bool = False,
    *_: Concrete,
) -> Rule:
    """Reduce over some axes, or over all."""
    dims = (dim,) if isinstance(dim, int) else dim or ()
    return ((None, _reduced(shape_of(self), dims, keepdim)),)


def reduce_bool(self: TensorType, dim: int | None = None, keepdim: bool = False) -> Rule:
    """Reduce to booleans."""
    return ((DType.BOOL, reduce(self, dim, keepdim)[0][1]),)


def reduce_index(self: TensorType, dim: int | None, keepdim: bool) -> Rule:
    """Reduce to positions."""
    return ((DType.INT64, reduce(self, dim, keepdim)[0][1]),)


def reduce_with_index(self: TensorType, dim: int, keepdim: bool) -> Rule:
    """Reduce to values and positions."""
    shape = _reduced(shape_of(self), (dim,), keepdim)
    return ((self.dtype, shape), (DType.INT64, shape))


def variance(
    self: TensorType, dim: tuple[int, ...] | None, correction: Concrete, keepdim: bool
) -> Rule:
    """Reduce to the variance."""
    return reduce(self, dim, keepdim)


def topk(self: TensorType, k: int, dim: int, *_: Concrete) -> Rule:
    """Keep the k best along an axis, with their positions."""
    shape, axis = list(shape_of(self)), axis_of(dim, len(self.dims))
    require(0 <= k <= shape[axis], f"k = {k} of {shape[axis]}")
    shape[axis] = k
    return ((self.dtype, tuple(shape)), (DType.INT64, tuple(shape)))


def sort(self: TensorType, dim: int, *_: Concrete) -> Rule:
    """Order along an axis, with the positions."""
    axis_of(dim, max(1, len(self.dims)))
    return ((self.dtype, shape_of(self)), (DType.INT64, shape_of(self)))


def linear(x: TensorType, weight: TensorType, bias: TensorType | None) -> Rule:
    """x [..., in] times weight [out, in] transposed, plus bias [out]."""
    rows, columns = _matrix(weight)
    require(bool(x.dims) and x.dims[-1] == columns, f"{x} times {weight} transposed")
    require(bias is None or shape_of(bias) == (rows,), f"bias {bias} of {rows} rows")
    return ((x.dtype, (*shape_of(x)[:-1], rows)),)


def _matrix(tensor: TensorType) -> tuple[int, int]:
    require(len(tensor.dims) == 2, f"{tensor} is not a matrix")
    rows, columns = shape_of(tensor)
    return rows, columns


def matmul(self: TensorType, other: TensorType) -> Rule:
    """Matrix product with numpy's rules for vectors and batches."""
    a, b = shape_of(self), shape_of(other)
    require(bool(a) and bool(b), "matmul of a scalar")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    require(left[-1] == right[-2], f"matmul of {self} and {other}")
    tail = left[-2:-1] * (len(a) > 1) + right[-1:] * (len(b) > 1)
    return ((self.dtype, broadcast_shapes([left[:-2], right[:-2]]) + tail),)


def mm(self: TensorType, other: TensorType) -> Rule:
    """Product of two matrices."""
    _matrix(self), _matrix(other)
    return matmul(self, other)


def bmm(self: TensorType, other: TensorType) -> Rule:
    """Batched product of [batch, n, m] and [batch, m, p]."""
    require(len(self.dims) == len(other.dims) == 3, "bmm takes three dims")
    require(self.dims[0] == other.dims[0], "bmm of different batches")
    return matmul(self, other)


def addmm(self: TensorType, a: TensorType, b: TensorType, *_: Concrete) -> Rule:
    """A product of matrices plus a tensor that broadcasts to it."""
    dtype, shape = mm(a, b)[0]
    require(broadcast_shapes([shape, shape_of(self)]) == shape, "addend larger than product")
    return ((dtype, shape),)


def convolution(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Rule:
    """x [batch, in, ...] with weight [out, in / groups, ...]; not transposed."""
    shape, kernel = shape_of(x), shape_of(weight)
    rank = len(kernel) - 2
    settings = (stride, padding, dilation)
    require(rank >= 1 and len(shape) == rank + 2, f"convolution of {x} with {weight}")
    require(all(len(s) == rank for s in settings), f"settings for {rank} spatial dims")
    require(min(stride) > 0 and min(dilation) > 0 and min(padding) >= 0, "settings")
    require(groups > 0 and shape[1] == kernel[1] * groups, "channels and groups")
    require(kernel[0] % groups == 0, "output channels and groups")
    require(bias is None or shape_of(bias) == kernel[:1], "bias of a convolution")
    spatial = tuple(
        (shape[i + 2] + 2 * padding[i] - dilation[i] * (kernel[i + 2] - 1) - 1) // stride[i] + 1
        for i in range(rank)
    )
    require(min(spatial) >= 0, "kernel larger than its input")
    return ((x.dtype, (shape[0], kernel[0], *spatial)),)


def normalized(
    x: TensorType, normalized_shape: tuple[int, ...], *rest: Concrete
) -> Rule:
    """Normalise over trailing dims, with optional weight and bias of that shape."""
    count = len(normalized_shape)
    require(shape_of(x)[len(x.dims) - count :] == normalized_shape, f"{x} over {normalized_shape}")
    for tensor in rest:
        if isinstance(tensor, TensorType):
            require(shape_of(tensor) == normalized_shape, f"{tensor} over {normalized_shape}")
    return same(x)


def along_axis(self: TensorType, dim: int, *_: Concrete) -> Rule:
    """Work along an axis; the shape stays, the dtype may be declared wider."""
    axis_of(dim, max(1, len(self.dims)))
    return same_shape(self)


def embedding(weight: TensorType, indices: TensorType, *_: Concrete) -> Rule:
    """Rows of weight [rows, dim] at indices."""
    return ((weight.dtype, (*shape_of(indices), _matrix(weight)[1])),)


def attention_product(
    q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None, *_: Concrete
) -> Rule:
    """Scaled dot product attention; heads may be grouped."""
    a, b, c = shape_of(q), shape_of(k), shape_of(v)
    require(len(a) >= 2 and len(a) == len(b) == len(c), f"attention of {q}, {k}, {v}")
    require(a[-1] == b[-1] and b[:-1] == c[:-1], f"attention of {q}, {k}, {v}")
    return ((q.dtype, (*a[:-1], c[-1])),)


def cached_attention(
    q: TensorType, k: TensorType, v: TensorType, valid: TensorType, *_: Concrete
) -> Rule:
    """`kvc::attention`."""
    a, b, c = shape_of(q), shape_of(k), shape_of(v)
    require(len(a) == len(b) == len(c) == 4, f"attention of {q}, {k}, {v}")
    require(b[:3] == c[:3] and a[3] == b[3] and a[0] == b[0], f"attention of {q}, {k}, {v}")
    require(b[1] > 0 and a[1] % b[1] == 0, "query heads are not a multiple of key heads")
    require(valid.dtype is DType.INT64 and shape_of(valid) == a[:1], "valid_length")
    return ((q.dtype, (*a[:3], c[3])),)


def cache_update(
    cache: TensorType,
    update: TensorType,
    write_indices: TensorType | None,
    axis: int,
    mode: str,
) -> Rule:
    """`kvc::cache_update`."""
    shape, new = shape_of(cache), shape_of(update)
    require(len(shape) == len(new) and cache.dtype is update.dtype, f"{update} into {cache}")
    axis = axis_of(axis, len(shape))
    require(axis > 0 and mode in ("linear", "circular"), f"axis {axis}, mode {mode!r}")
    require(shape[:axis] + shape[axis + 1 :] == new[:axis] + new[axis + 1 :], f"{update} into {cache}")
    require(new[axis] <= shape[axis], f"{update} is longer than {cache}")
    if write_indices is not None:
        require(write_indices.dtype is DType.INT64, "write_indices are not int64")
        require(shape_of(write_indices) == shape[:1], "one write index per batch row")
    return same(cache)


def cat(tensors: tuple[TensorType, ...], dim: int) -> Rule:
    """Join along an axis."""
    require(bool(tensors), "cat of nothing")
    first = shape_of(tensors[0])
    axis = axis_of(dim, len(first))
    shapes = [shape_of(t) for t in tensors]
    require(all(len(s) == len(first) for s in shapes), "cat of different ranks")
    rests = {s[:axis] + s[axis + 1 :] for s in shapes}
    require(len(rests) == 1, f"cat of {shapes} along {axis}")
    return ((None, (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :])),)


def stack(tensors: tuple[TensorType, ...], dim: int) -> Rule:
    """Join along a new axis."""
    shapes = {shape_of(t) for t in tensors}
    require(len(shapes) == 1, f"stack of {shapes}")
    shape = shapes.pop()
    axis = axis_of(dim, len(shape) + 1)
    return ((None, (*shape[:axis], len(tensors), *shape[axis:])),)


def repeat(self: TensorType, repeats: tuple[int, ...]) -> Rule:
    """Tile; repeats may add leading dims."""
    shape = shape_of(self)
    require(len(repeats) >= len(shape) and min(repeats, default=0) >= 0, f"repeats {repeats}")
    padded = (1,) * (len(repeats) - len(shape)) + shape
    return ((self.dtype, tuple(a * b for a, b in zip(padded, repeats, strict=True))),)


def pad(self: TensorType, padding: tuple[int, ...], _: Concrete) -> Rule:
    """Pad trailing dims, last dim first, (before, after) each."""
    shape = list(shape_of(self))
    require(len(padding) % 2 == 0 and len(padding) <= 2 * len(shape), f"padding {padding}")
    for i in range(0, len(padding), 2):
        shape[-1 - i // 2] += padding[i] + padding[i + 1]
    require(min(shape, default=0) >= 0, f"padding {padding} of {self}")
    return ((self.dtype, tuple(shape)),)


def index_select(self: TensorType, dim: int, index: TensorType) -> Rule:
    """Pick slices along an axis."""
    shape = list(shape_of(self))
    require(len(index.dims) <= 1 and bool(shape), "index_select")
    shape[axis_of(dim, len(shape))] = math.prod(shape_of(index))
    return ((self.dtype, tuple(shape)),)


def gather(self: TensorType, dim: int, index: TensorType) -> Rule:
    """Pick elements along an axis; the index has the result's shape."""
    a, b = shape_of(self), shape_of(index)
    require(len(a) == len(b), f"gather of {self} by {index}")
    axis = axis_of(dim, max(1, len(a)))
    require(all(i == axis or y <= x for i, (x, y) in enumerate(zip(a, b, strict=True))), "gather")
    return ((self.dtype, b),)


def indexed(self: TensorType, indices: tuple[TensorType | None, ...]) -> Rule:
    """Advanced indexing by integer tensors, numpy's placement of the result dims."""
    shape = shape_of(self)
    require(len(indices) <= len(shape), f"{len(indices)} indices into {self}")
    used = [i for i, index in enumerate(indices) if index is not None]
    require(bool(used), "index without indices")
    require(all(t.dtype is not DType.BOOL for t in indices if t), "boolean index")
    picked = broadcast_shapes([shape_of(t) for t in indices if t is not None])
    adjacent = used[-1] - used[0] + 1 == len(used)
    kept = [size for i, size in enumerate(shape) if i not in used]
    place = used[0] if adjacent else 0
    return ((self.dtype, (*kept[:place], *picked, *kept[place:])),)


def index_put(
    self: TensorType, indices: tuple[TensorType | None, ...], values: TensorType, _: bool
) -> Rule:
    """Write at advanced indices; values broadcast to what they select."""
    selected = indexed(self, indices)[0][1]
    require(broadcast_shapes([selected, shape_of(values)]) == selected, "values do not fit")
    return same(self)


def index_copy(self: TensorType, dim: int, index: TensorType, source: TensorType) -> Rule:
    """Write slices along an axis."""
    dtype, selected = index_select(self, dim, index)[0]
    require(shape_of(source) == selected and source.dtype is dtype, f"{source} into {self}")
    return same(self)


def scatter(self: TensorType, dim: int, index: TensorType, source: Concrete) -> Rule:
    """Write elements along an axis."""
    gather(self, dim, index)
    if isinstance(source, TensorType):
        pairs = zip(shape_of(index), shape_of(source), strict=True)
        require(len(index.dims) == len(source.dims) and all(a <= b for a, b in pairs), "scatter")
    return same(self)


def copy(self: TensorType, source: TensorType) -> Rule:
    """Replace all elements by a source that broadcasts."""
    shape = shape_of(self)
    require(broadcast_shapes([shape, shape_of(source)]) == shape, f"{source} into {self}")
    return same(self)


def full(size: tuple[int, ...], value: Concrete, dtype: DType) -> Rule:
    """A tensor of one value."""
    require(min(size, default=0) >= 0, f"size {size}")
    return ((dtype, size),)


def arange(start: float, end: float, step: float, dtype: DType) -> Rule:
    """Numbers from start to end, the end excluded."""
    require(step != 0 and math.isfinite((end - start) / step), f"step {step}")
    return ((dtype, (max(0, math.ceil((end - start) / step)),)),)


def roll(self: TensorType, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Rule:
    """Rotate along axes."""
    require(len(shifts) == max(1, len(dims)), "roll")
    for dim in dims:
        axis_of(dim, len(self.dims))
    return same(self)


def flip(self: TensorType, dims: tuple[int, ...]) -> Rule:
    """Reverse along axes."""
    for dim in dims:
        axis_of(dim, len(self.dims))
    return same(self)


def quantize_rows(x: TensorType) -> Rule:
    """`kvc::quantize_rows`."""
    require(bool(x.dims) and x.dtype is DType.FLOAT32, f"quantize_rows of {x}")
    rows = (*shape_of(x)[:-1], 1)
    return ((DType.INT8, shape_of(x)), (DType.FLOAT32, rows), (DType.INT32, rows))


def linear_qd8(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    weight: TensorType,
    weight_scale: TensorType,
    bias: TensorType | None,
) -> Rule:
    """`kvc::linear_qd8`."""
    require(q.dtype is DType.INT8 and weight.dtype is DType.INT8, "linear_qd8 takes int8")
    rows = (*shape_of(q)[:-1], 1)
    require(shape_of(scale) == rows and shape_of(zero_point) == rows, "one scale per row")
    require(shape_of(weight_scale) == shape_of(weight)[:1], "one scale per channel")
    return ((DType.FLOAT32, linear(q, weight, bias)[0][1]),)


def embedding_q8(weight: TensorType, scale: TensorType, indices: TensorType) -> Rule:
    """`kvc::embedding_q8`."""
    require(weight.dtype is DType.INT8, "embedding_q8 takes int8")
    require(shape_of(scale) == shape_of(weight)[:1], "one scale per row")
    return ((DType.FLOAT32, embedding(weight, indices)[0][1]),)


def unchecked(*_: Concrete) -> Rule:
    """No rule: the delegate's payload says what comes out."""
    return ()


