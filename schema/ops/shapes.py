"""Shape rules of elementwise operators, reductions, joins and creation.

Each rule takes an operator's arguments, with tensors given as static `TensorType`s, and
returns the dtype and shape of each result. A dtype of None means that the instruction
declares the dtype. Rules of products are in `products.py`, of operators with index
tensors in `indexing.py`, of views in `views.py`.
"""

import math
from collections.abc import Sequence

from kvc.schema.dtypes import DType
from kvc.schema.ops.spec import Concrete, Inferred, ShapeMismatch
from kvc.schema.types import TensorType

Shape = tuple[int, ...]
Rule = tuple[Inferred, ...]


def require(condition: bool, text: str, *about: object) -> None:
    """Raise `ShapeMismatch` unless the condition holds.

    `text` is formatted with `about` only on failure, since most conditions hold.
    """
    if not condition:
        raise ShapeMismatch(text.format(*about) if about else text)


def shape_of(tensor: TensorType) -> Shape:
    """Return the dims of a static type."""
    return tensor.dims  # type: ignore[return-value]


def require_row_lengths(row_lengths: TensorType | None, rows: int) -> None:
    """Raise `ShapeMismatch` unless `row_lengths` is None or has one length per row."""
    if row_lengths is not None:
        fits = row_lengths.dtype is DType.INT64 and shape_of(row_lengths) == (rows,)
        require(fits, f"row_lengths {row_lengths} of {rows} rows")


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the first axis; a negative one is from the end."""
    require(-rank <= axis < rank, f"axis {axis} of a tensor with {rank} dims")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> set[int]:
    """Return axes counted from the first axis; raise if an axis is given twice.

    A scalar is treated as having one axis.
    """
    found = {axis_of(axis, max(1, rank)) for axis in axes}
    require(len(found) == len(axes), f"axes {tuple(axes)} name one axis twice")
    return found


def matrix_of(tensor: TensorType) -> tuple[int, int]:
    """Return the numbers of rows and columns of a matrix, a static type of two dims."""
    require(len(tensor.dims) == 2, "{} is not a matrix", tensor)
    rows, columns = shape_of(tensor)
    return rows, columns


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the common shape under numpy's broadcasting."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if result[i] == 1:
                result[i] = size
            elif size not in (1, result[i]):
                raise ShapeMismatch(f"cannot broadcast {shapes}")
    return tuple(result)


def broadcast(*arguments: Concrete) -> Rule:
    """Compute elementwise over all tensors among the arguments."""
    tensors = [a for a in arguments if isinstance(a, TensorType)]
    return ((None, broadcast_shapes([shape_of(t) for t in tensors])),)


def compare(*arguments: Concrete) -> Rule:
    """Compute elementwise; the result is bool."""
    return ((DType.BOOL, broadcast(*arguments)[0][1]),)


def where(condition: TensorType, self: Concrete, other: Concrete) -> Rule:
    """Select elements of two operands by a boolean condition."""
    require(condition.dtype is DType.BOOL, "the condition is not boolean")
    return broadcast(condition, self, other)


def same(self: TensorType, *_: Concrete) -> Rule:
    """Return the dtype and the shape of the first operand."""
    return ((self.dtype, shape_of(self)),)


def same_shape(self: TensorType, *_: Concrete) -> Rule:
    """Return the shape of the first operand; the instruction declares the dtype."""
    return ((None, shape_of(self)),)


def cast(self: TensorType, dtype: DType) -> Rule:
    """Return the shape of the operand, and the requested dtype."""
    return ((dtype, shape_of(self)),)


def masked_fill(self: TensorType, mask: TensorType, value: TensorType | float) -> Rule:
    """Replace the elements where a mask is true; the mask is broadcast."""
    require(mask.dtype is DType.BOOL, "the mask is not boolean")
    single = not isinstance(value, TensorType) or math.prod(shape_of(value)) == 1
    require(single, "{} in each place", value)
    shape = shape_of(self)
    require(
        broadcast_shapes([shape, shape_of(mask)]) == shape, "mask larger than operand"
    )
    return same(self)


def _reduced(shape: Shape, dims: Sequence[int], keepdim: bool) -> Shape:
    axes = axes_of(dims, len(shape)) if dims else set(range(len(shape)))
    if keepdim:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def reduce(
    self: TensorType,
    dim: int | tuple[int, ...] | None = None,
    keepdim: bool = False,
    *_: Concrete,
) -> Rule:
    """Reduce over the axes in `dim`, or over all axes."""
    dims = (dim,) if isinstance(dim, int) else dim or ()
    return ((None, _reduced(shape_of(self), dims, keepdim)),)


def reduce_bool(
    self: TensorType, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Rule:
    """Reduce to bool; if the operand is uint8, reduce to uint8, as torch does."""
    dtype = DType.UINT8 if self.dtype is DType.UINT8 else DType.BOOL
    return ((dtype, reduce(self, dim, keepdim)[0][1]),)


def reduce_index(self: TensorType, dim: int | None, keepdim: bool) -> Rule:
    """Reduce an axis, or all axes, to the index of an element."""
    return ((DType.INT64, reduce(self, dim, keepdim)[0][1]),)


def reduce_with_index(self: TensorType, dim: int, keepdim: bool) -> Rule:
    """Reduce an axis to the values of elements, and their indices."""
    shape = _reduced(shape_of(self), (dim,), keepdim)
    return ((self.dtype, shape), (DType.INT64, shape))


def variance(
    self: TensorType, dim: tuple[int, ...] | None, correction: Concrete, keepdim: bool
) -> Rule:
    """Reduce axes to the variance of their elements."""
    return reduce(self, dim, keepdim)


def variance_and_mean(
    self: TensorType, dim: tuple[int, ...] | None, correction: Concrete, keepdim: bool
) -> Rule:
    """Reduce axes to the variance and the mean of their elements."""
    return reduce(self, dim, keepdim) * 2


def kth_value(self: TensorType, k: int, dim: int, keepdim: bool) -> Rule:
    """Reduce an axis to its k-th smallest value and that value's index; k is from 1."""
    size = shape_of(self)[axis_of(dim, len(self.dims))] if self.dims else 1
    require(0 < k <= size, f"k = {k} of {size}")
    return reduce_with_index(self, dim, keepdim)


def diagonal(self: TensorType, offset: int, dim1: int, dim2: int) -> Rule:
    """Replace two axes by a new last axis: the diagonal of the two axes."""
    shape, rank = list(shape_of(self)), len(self.dims)
    first, second = axis_of(dim1, rank), axis_of(dim2, rank)
    require(first != second, f"the diagonal of axis {first} and itself")
    rows, columns = shape[first], shape[second]
    length = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    kept = [size for i, size in enumerate(shape) if i not in (first, second)]
    return ((self.dtype, (*kept, max(0, length))),)


def unfold(self: TensorType, dimension: int, size: int, step: int) -> Rule:
    """Take sliding windows along an axis; a new last axis is along each window."""
    shape, axis = list(shape_of(self)), axis_of(dimension, len(self.dims))
    require(0 <= size <= shape[axis] and step > 0, f"windows of {size} every {step}")
    shape[axis] = (shape[axis] - size) // step + 1
    return ((self.dtype, (*shape, size)),)


def vector_norm(
    self: TensorType, _: Concrete, dim: tuple[int, ...] | None, keepdim: bool
) -> Rule:
    """Reduce axes to the norm of their elements."""
    return reduce(self, dim, keepdim)


def topk(self: TensorType, k: int, dim: int, *_: Concrete) -> Rule:
    """Keep the k greatest or smallest elements along an axis, with their indices."""
    shape, axis = list(shape_of(self)), axis_of(dim, len(self.dims))
    require(0 <= k <= shape[axis], f"k = {k} of {shape[axis]}")
    shape[axis] = k
    return ((self.dtype, tuple(shape)), (DType.INT64, tuple(shape)))


def sort(self: TensorType, dim: int, *_: Concrete) -> Rule:
    """Sort along an axis; return the sorted values and their former indices."""
    axis_of(dim, max(1, len(self.dims)))
    return ((self.dtype, shape_of(self)), (DType.INT64, shape_of(self)))


def normalized(
    x: TensorType, normalized_shape: tuple[int, ...], *rest: Concrete
) -> Rule:
    """Normalize over the trailing dims of x, whose sizes are `normalized_shape`.

    Optional weight and bias have the shape `normalized_shape`.
    """
    count = len(normalized_shape)
    require(
        shape_of(x)[len(x.dims) - count :] == normalized_shape,
        "{} over {}",
        x,
        normalized_shape,
    )
    for tensor in rest:
        if isinstance(tensor, TensorType):
            require(
                shape_of(tensor) == normalized_shape,
                "{} over {}",
                tensor,
                normalized_shape,
            )
    return same(x)


def _check_channels(x: TensorType, *tensors: Concrete) -> int:
    """Return the number of channels of x; all other tensors must be [channels]."""
    require(len(x.dims) >= 2, f"{x} has no channels")
    channels = shape_of(x)[1]
    for tensor in tensors:
        if isinstance(tensor, TensorType):
            require(shape_of(tensor) == (channels,), f"{tensor} for {x}")
    return channels


def batch_norm(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    mean: TensorType,
    var: TensorType,
    _: float,
) -> Rule:
    """Normalize x [batch, channels, ...] with statistics of shape [channels]."""
    _check_channels(x, weight, bias, mean, var)
    return same(x)


def group_norm(
    x: TensorType,
    groups: int,
    weight: TensorType | None,
    bias: TensorType | None,
    _: float,
) -> Rule:
    """Normalize groups of the channels of x [batch, channels, ...]."""
    channels = _check_channels(x, weight, bias)
    require(groups > 0 and channels % groups == 0, f"{groups} groups of {x}")
    return same(x)


def along_axis(self: TensorType, dim: int, *_: Concrete) -> Rule:
    """Compute along an axis and keep the shape; the instruction declares the dtype."""
    axis_of(dim, max(1, len(self.dims)))
    return same_shape(self)


def cat(tensors: tuple[TensorType, ...], dim: int) -> Rule:
    """Concatenate along an axis."""
    require(bool(tensors), "cat of nothing")
    first = shape_of(tensors[0])
    axis = axis_of(dim, len(first))
    shapes = [shape_of(t) for t in tensors]
    require(all(len(s) == len(first) for s in shapes), "cat of different ranks")
    rests = {s[:axis] + s[axis + 1 :] for s in shapes}
    require(len(rests) == 1, f"cat of {shapes} along {axis}")
    return ((None, (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :])),)


def stack(tensors: tuple[TensorType, ...], dim: int) -> Rule:
    """Stack along a new axis."""
    shapes = {shape_of(t) for t in tensors}
    require(len(shapes) == 1, f"stack of {shapes}")
    shape = shapes.pop()
    axis = axis_of(dim, len(shape) + 1)
    return ((None, (*shape[:axis], len(tensors), *shape[axis:])),)


def repeat(self: TensorType, repeats: tuple[int, ...]) -> Rule:
    """Tile; `repeats` may have more entries than the operand has dims."""
    shape = shape_of(self)
    require(
        len(repeats) >= len(shape) and min(repeats, default=0) >= 0,
        f"repeats {repeats}",
    )
    padded = (1,) * (len(repeats) - len(shape)) + shape
    return ((self.dtype, tuple(a * b for a, b in zip(padded, repeats, strict=True))),)


def pad(self: TensorType, padding: tuple[int, ...], _: Concrete) -> Rule:
    """Pad trailing dims; `padding` has two numbers, before and after, for each dim.

    The last dim comes first in `padding`.
    """
    shape = list(shape_of(self))
    require(
        len(padding) % 2 == 0 and len(padding) <= 2 * len(shape), f"padding {padding}"
    )
    require(max(map(abs, padding), default=0) < 1 << 62, f"padding {padding}")
    for i in range(0, len(padding), 2):
        shape[-1 - i // 2] += padding[i] + padding[i + 1]
    require(min(shape, default=0) >= 0, f"padding {padding} of {self}")
    return ((self.dtype, tuple(shape)),)


def full(size: tuple[int, ...], value: Concrete, dtype: DType) -> Rule:
    """Make a tensor of one value."""
    require(min(size, default=0) >= 0, f"size {size}")
    return ((dtype, size),)


def arange(start: float, end: float, step: float, dtype: DType) -> Rule:
    """Make the numbers from start to end, the end excluded."""
    if dtype is DType.INT64:  # as torch, which counts other dtypes in float64
        start, end, step = int(start), int(end), int(step)
    require(step != 0 and math.isfinite((end - start) / step), f"step {step}")
    return ((dtype, (max(0, math.ceil((end - start) / step)),)),)


def roll(self: TensorType, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Rule:
    """Rotate the elements along axes: what leaves at one end enters at the other."""
    require(len(shifts) == max(1, len(dims)), "roll")
    for dim in dims:
        axis_of(dim, len(self.dims))
    return same(self)


def flip(self: TensorType, dims: tuple[int, ...]) -> Rule:
    """Reverse the order of the elements along axes."""
    for dim in dims:
        axis_of(dim, len(self.dims))
    return same(self)


def unchecked(*_: Concrete) -> Rule:
    """Apply no rule: the blocks of the operator declare its results."""
    return ()
