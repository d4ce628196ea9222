"""Shape rules of operators that read or write at the indices of an index tensor."""

import math

from kvc.schema.dtypes import DType
from kvc.schema.ops.shapes import (
    Rule,
    axis_of,
    broadcast_shapes,
    matrix_of,
    require,
    require_row_lengths,
    same,
    shape_of,
)
from kvc.schema.ops.spec import Concrete
from kvc.schema.types import TensorType


def require_index(tensor: TensorType) -> None:
    """Raise `ShapeMismatch` unless a tensor has a dtype that indices can have."""
    allowed = (DType.INT32, DType.INT64)
    require(tensor.dtype in allowed, "{} as indices, which are int32 or int64", tensor)


def embedding(weight: TensorType, indices: TensorType, *_: Concrete) -> Rule:
    """Look up rows of weight [rows, dim] at indices."""
    require_index(indices)
    return ((weight.dtype, (*shape_of(indices), matrix_of(weight)[1])),)


def embedding_q8(weight: TensorType, scale: TensorType, indices: TensorType) -> Rule:
    """`kvc::embedding_q8`: scale [rows], or [rows, m] for rows of m blocks."""
    require(weight.dtype is DType.INT8, "embedding_q8 takes int8")
    rows, width = matrix_of(weight)
    lead, blocks = shape_of(scale)[:1], shape_of(scale)[1:]
    require(lead == (rows,) and len(blocks) <= 1, "scales {} of {}", scale, weight)
    whole = all(count > 0 and width % count == 0 for count in blocks)
    require(whole, "scales {} of rows of {} values", scale, width)
    return ((DType.FLOAT32, embedding(weight, indices)[0][1]),)


def embedding_bag(
    weight: TensorType,
    indices: TensorType,
    offsets: TensorType,
    mode: int,
    factors: TensorType | None,
    ended: bool,
    _: int,
) -> Rule:
    """Reduce the weight rows of each bag of indices to one row.

    A bag is a run of indices; `offsets` has the index at which each bag starts.
    """
    require(len(weight.dims) == 2, f"weight {weight}")
    require(len(indices.dims) == len(offsets.dims) == 1, f"{indices} and {offsets}")
    fits = factors is None or shape_of(factors) == shape_of(indices)
    require(fits and 0 <= mode <= 2, f"mode {mode} with {factors}")
    bags = shape_of(offsets)[0] - bool(ended)
    require(bags >= 0, f"offsets {offsets}")
    return ((weight.dtype, (bags, shape_of(weight)[1])),)


def bucketize(
    self: TensorType, boundaries: TensorType, narrow: bool, *_: Concrete
) -> Rule:
    """Return, for each element, the index of the interval of `boundaries` around it."""
    require(len(boundaries.dims) == 1, f"boundaries {boundaries}")
    return ((DType.INT32 if narrow else DType.INT64, shape_of(self)),)


def search_sorted(
    rows: TensorType, self: TensorType, narrow: bool, *_: Concrete
) -> Rule:
    """Return, for each element, the index where it would be inserted in a sorted row.

    Each batch entry has a sorted row of its own, or all batch entries share a single
    row.
    """
    known = len(rows.dims) == 1 or shape_of(rows)[:-1] == shape_of(self)[:-1]
    require(bool(rows.dims) and known, f"{self} in {rows}")
    return ((DType.INT32 if narrow else DType.INT64, shape_of(self)),)


def index_select(self: TensorType, dim: int, index: TensorType) -> Rule:
    """Pick slices along an axis."""
    require_index(index)
    shape = list(shape_of(self))
    fits = len(index.dims) <= 1 and bool(shape)
    require(fits, f"an index of {len(index.dims)} dims into {len(shape)} dims")
    shape[axis_of(dim, len(shape))] = math.prod(shape_of(index))
    return ((self.dtype, tuple(shape)),)


def gather(self: TensorType, dim: int, index: TensorType) -> Rule:
    """Pick elements along an axis; the index has the result's shape."""
    require_index(index)
    a, b = shape_of(self), shape_of(index)
    require(len(a) == len(b), f"gather of {self} by {index}")
    axis = axis_of(dim, max(1, len(a)))
    require(
        all(i == axis or y <= x for i, (x, y) in enumerate(zip(a, b, strict=True))),
        "gather",
    )
    return ((self.dtype, b),)


def indexed(self: TensorType, indices: tuple[TensorType | None, ...]) -> Rule:
    """Index by integer tensors; the result's dims are in the order of numpy's."""
    shape = shape_of(self)
    require(len(indices) <= len(shape), f"{len(indices)} indices into {self}")
    used = [i for i, index in enumerate(indices) if index is not None]
    require(bool(used), "index without indices")
    tensors = [index for index in indices if index is not None]
    for tensor in tensors:
        require_index(tensor)
    picked = broadcast_shapes([shape_of(tensor) for tensor in tensors])
    adjacent = used[-1] - used[0] + 1 == len(used)
    kept = [size for i, size in enumerate(shape) if i not in used]
    place = used[0] if adjacent else 0
    return ((self.dtype, (*kept[:place], *picked, *kept[place:])),)


def index_put(
    self: TensorType,
    indices: tuple[TensorType | None, ...],
    values: TensorType,
    _: bool,
) -> Rule:
    """Write `values` at the indices in index tensors; `values` are broadcast."""
    selected = indexed(self, indices)[0][1]
    require(values.dtype is self.dtype, f"{values} into {self}")
    require(
        broadcast_shapes([selected, shape_of(values)]) == selected, "values do not fit"
    )
    return same(self)


def index_copy(
    self: TensorType, dim: int, index: TensorType, source: TensorType
) -> Rule:
    """Write slices of `source` along an axis, each at its index."""
    dtype, selected = index_select(self, dim, index)[0]
    require(
        shape_of(source) == selected and source.dtype is dtype, f"{source} into {self}"
    )
    return same(self)


def index_add(
    self: TensorType, dim: int, index: TensorType, source: TensorType, _: Concrete
) -> Rule:
    """Add slices of `source` along an axis, each at its index.

    Slices with the same index are all added.
    """
    return index_copy(self, dim, index, source)


def scatter(self: TensorType, dim: int, index: TensorType, source: Concrete) -> Rule:
    """Write elements of `source` along an axis, each at its index."""
    gather(self, dim, index)
    if isinstance(source, TensorType):
        require(source.dtype is self.dtype, f"{source} into {self}")
        pairs = zip(shape_of(index), shape_of(source), strict=True)
        require(
            len(index.dims) == len(source.dims) and all(a <= b for a, b in pairs),
            "scatter",
        )
    return same(self)


def scatter_reduce(
    self: TensorType,
    dim: int,
    index: TensorType,
    source: TensorType,
    reduce: str,
    _: bool,
) -> Rule:
    """Reduce elements of `source` into the elements at their indices along an axis."""
    known = ("sum", "prod", "mean", "amax", "amin")
    require(reduce in known, f"the reduction {reduce!r}")
    return scatter(self, dim, index, source)


def copy(self: TensorType, source: TensorType) -> Rule:
    """Replace all elements of a tensor by those of `source`, which is broadcast."""
    shape = shape_of(self)
    require(
        broadcast_shapes([shape, shape_of(source)]) == shape, f"{source} into {self}"
    )
    return same(self)


def check_index(index: TensorType, least: int, count: int, slots: int) -> Rule:
    """`kvc::check_index`: check that slots can be written from each index on.

    Each index must be at least `least`, and `count` slots must fit after it.
    """
    require_index(index)
    require(least <= 0 <= count and slots >= 0, "check_index")
    return ()


def check_rows(
    index: TensorType, row_lengths: TensorType, most: int, slots: int
) -> Rule:
    """`kvc::check_rows`: check row lengths.

    Each row length must be at most `most`, and so many slots must fit after its index.
    """
    known = index.dtype is DType.INT64 and len(index.dims) == 1
    require(known and min(most, slots) >= 0, "check_rows")
    require_row_lengths(row_lengths, shape_of(index)[0])
    return ()


def check_size(size: int, expected: int) -> Rule:
    """`kvc::check_size`: check that a size is `expected`, as a branch assumes."""
    require(size >= 0 and expected >= 0, "check_size")
    return ()


def check_truth(truth: TensorType, message: str) -> Rule:
    """`aten::_assert_async.msg`: check that a tensor of one number is not 0."""
    require(math.prod(shape_of(truth)) == 1, "the truth of {}", truth)
    return ()
