"""Shape rules of products: matrices, convolution, attention, quantized products."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from kvc.schema.dtypes import DType
from kvc.schema.ops.shapes import (
    Rule,
    Shape,
    broadcast_shapes,
    matrix_of,
    require,
    shape_of,
)
from kvc.schema.ops.spec import Concrete
from kvc.schema.types import TensorType

QB4_BLOCK = 32  # values that share a scale: a multiple of this
QB4_ROWS = 8  # output channels that lie side by side
QB4_BYTES = 4  # of each of these in turn
_MOST = 2**31 - 1  # of a setting of a convolution; torch computes with 32 bits


def linear(x: TensorType, weight: TensorType, bias: TensorType | None) -> Rule:
    """Multiply x [..., in] by weight [out, in] transposed; add bias [out]."""
    rows, columns = matrix_of(weight)
    fits = bool(x.dims) and x.dims[-1] == columns
    require(fits, "{} times {} transposed", x, weight)
    fits = bias is None or shape_of(bias) == (rows,)
    require(fits, "bias {} of {} rows", bias, rows)
    return ((x.dtype, (*shape_of(x)[:-1], rows)),)


def matmul(self: TensorType, other: TensorType) -> Rule:
    """Multiply matrices, with numpy's rules for vectors and batches."""
    a, b = shape_of(self), shape_of(other)
    require(bool(a) and bool(b), "matmul of a scalar")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    require(left[-1] == right[-2], f"matmul of {self} and {other}")
    tail = left[-2:-1] * (len(a) > 1) + right[-1:] * (len(b) > 1)
    return ((self.dtype, broadcast_shapes([left[:-2], right[:-2]]) + tail),)


def mm(self: TensorType, other: TensorType) -> Rule:
    """Multiply two matrices."""
    matrix_of(self), matrix_of(other)
    return matmul(self, other)


def bmm(self: TensorType, other: TensorType) -> Rule:
    """Multiply [batch, n, m] by [batch, m, p]."""
    require(len(self.dims) == len(other.dims) == 3, "bmm takes three dims")
    require(self.dims[0] == other.dims[0], "bmm of different batches")
    return matmul(self, other)


def addmm(self: TensorType, a: TensorType, b: TensorType, *_: Concrete) -> Rule:
    """Add a tensor to a product of two matrices; the tensor is broadcast."""
    dtype, shape = mm(a, b)[0]
    require(
        broadcast_shapes([shape, shape_of(self)]) == shape, "addend larger than product"
    )
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
    """Convolve x [batch, in, ...] with weight [out, in / groups, ...]."""
    shape, kernel = shape_of(x), shape_of(weight)
    rank = len(kernel) - 2
    settings = (stride, padding, dilation)
    require(rank >= 1 and len(shape) == rank + 2, f"convolution of {x} with {weight}")
    require(all(len(s) == rank for s in settings), f"settings for {rank} spatial dims")
    require(min(stride) > 0 and min(dilation) > 0 and min(padding) >= 0, "settings")
    require(max(map(max, settings)) <= _MOST, "settings")
    require(groups > 0 and shape[1] == kernel[1] * groups, "channels and groups")
    require(kernel[0] % groups == 0, "output channels and groups")
    require(min(kernel[2:]) > 0, f"a kernel {weight}")
    require(bias is None or shape_of(bias) == kernel[:1], "bias of a convolution")
    spatial = tuple(
        (shape[i + 2] + 2 * padding[i] - dilation[i] * (kernel[i + 2] - 1) - 1)
        // stride[i]
        + 1
        for i in range(rank)
    )
    require(min(spatial) > 0, "kernel larger than its input")
    return ((x.dtype, (shape[0], kernel[0], *spatial)),)


def distances(x: TensorType, y: TensorType, *_: Concrete) -> Rule:
    """Compute the distances of rows [..., m, k] to rows [..., n, k]."""
    a, b = shape_of(x), shape_of(y)
    fits = len(a) >= 2 and len(b) >= 2 and a[-1] == b[-1]
    require(fits, "rows of {} and of {}", x, y)
    return ((x.dtype, (*broadcast_shapes([a[:-2], b[:-2]]), a[-2], b[-2])),)


def conv_transpose(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> Rule:
    """Apply a transposed convolution to x [batch, in, ...].

    The weight is [in, out / groups, ...].
    """
    shape, kernel = shape_of(x), shape_of(weight)
    rank = len(kernel) - 2
    settings = (stride, padding, output_padding, dilation)
    require(rank >= 1 and len(shape) == rank + 2, f"convolution of {x} with {weight}")
    require(all(len(s) == rank for s in settings), f"settings for {rank} spatial dims")
    require(min(stride) > 0 and min(dilation) > 0, "settings")
    require(min(padding) >= 0 and min(output_padding) >= 0, "settings")
    require(max(map(max, settings)) <= _MOST, "settings")
    extra = zip(output_padding, stride, dilation, strict=True)
    require(all(o < max(s, d) for o, s, d in extra), "output padding")
    require(groups > 0 and shape[1] == kernel[0], "channels of a convolution")
    require(kernel[0] % groups == 0, "channels and groups")
    require(min(kernel[2:]) > 0, f"a kernel {weight}")
    channels = kernel[1] * groups
    require(bias is None or shape_of(bias) == (channels,), "bias of a convolution")
    spatial = tuple(
        (shape[i + 2] - 1) * stride[i]
        - 2 * padding[i]
        + dilation[i] * (kernel[i + 2] - 1)
        + output_padding[i]
        + 1
        for i in range(rank)
    )
    require(min(spatial) > 0, "padding larger than the result")
    return ((x.dtype, (shape[0], channels, *spatial)),)


def attention_product(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: TensorType | None,
    _causal: bool,
    _scale: float | None,
    enable_gqa: bool,
) -> Rule:
    """Compute scaled dot-product attention; query heads may share a key head."""
    a, b, c = shape_of(q), shape_of(k), shape_of(v)
    require(len(a) >= 2 and len(a) == len(b) == len(c), f"attention of {q}, {k}, {v}")
    require(a[-1] == b[-1] and b[:-1] == c[:-1], f"attention of {q}, {k}, {v}")
    lead = _grouped(a, b) if enable_gqa else broadcast_shapes([a[:-2], b[:-2]])
    if mask is not None:
        scores = (*lead, a[-2], b[-2])
        require(broadcast_shapes([scores, shape_of(mask)]) == scores, f"mask {mask}")
    return ((q.dtype, (*lead, a[-2], c[-1])),)


def _grouped(q: Shape, k: Shape) -> Shape:
    require(len(q) >= 3 and k[-3] > 0 and q[-3] % k[-3] == 0, "heads do not group")
    return (*broadcast_shapes([q[:-3], k[:-3]]), q[-3])


def quantize_rows(x: TensorType) -> Rule:
    """`kvc::quantize_rows`: int8 rows, and a scale and a zero point for each row."""
    require(bool(x.dims) and x.dims[-1] != 0, "quantize_rows of {}", x)
    require(x.dtype is DType.FLOAT32, "quantize_rows of {}", x)
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
    """`kvc::linear_qd8`: weight int8 [out, in], weight_scale float32 [out]."""
    require(weight.dtype is DType.INT8, "linear_qd8 with {}", weight)
    require(weight_scale.dtype is DType.FLOAT32, "scales {}", weight_scale)
    require(shape_of(weight_scale) == shape_of(weight)[:1], "one scale per channel")
    return _quantized_linear(q, scale, zero_point, matrix_of(weight), bias)


def linear_w8(
    x: TensorType,
    weight: TensorType,
    weight_scale: TensorType,
    bias: TensorType | None,
) -> Rule:
    """`kvc::linear_w8`: weight int8 [out, in], weight_scale float32 [out]."""
    floats = [each for each in (x, weight_scale, bias) if each is not None]
    require(all(each.dtype is DType.FLOAT32 for each in floats), "linear_w8 of {}", x)
    require(weight.dtype is DType.INT8, "linear_w8 with {}", weight)
    require(shape_of(weight_scale) == shape_of(weight)[:1], "one scale per channel")
    return linear(x, weight, bias)


def linear_qb4(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    weight: TensorType,
    weight_scale: TensorType,
    bias: TensorType | None,
) -> Rule:
    """`kvc::linear_qb4`: weight uint8 [out / 8, in / 8, 8, 4], two values per byte.

    weight_scale is bfloat16 [out / 8, in / block, 8], where `block` is the number of
    values that share a scale, a multiple of 32.
    """
    sizes = int4_matrix(weight, weight_scale, {DType.BFLOAT16})
    return _quantized_linear(q, scale, zero_point, sizes, bias)


def int4_matrix(
    weight: TensorType, weight_scale: TensorType, dtypes: AbstractSet[DType]
) -> tuple[int, int]:
    """Return the numbers of rows and columns of an int4 weight of `kvc::linear_qb4`.

    Args:
        weight: the packed values.
        weight_scale: the scales of their blocks.
        dtypes: the dtypes that the scales may have.
    """
    require(weight.dtype is DType.UINT8, f"an int4 product with {weight}")
    require(weight_scale.dtype in dtypes, f"scales {weight_scale}")
    whole, scales = shape_of(weight), shape_of(weight_scale)
    side_by_side = len(whole) == 4 and whole[2:] == (QB4_ROWS, QB4_BYTES)
    older = "; compile the model again" if len(whole) == 2 else ""
    require(side_by_side, f"{weight} is not [out / 8, in / 8, 8, 4]{older}")
    require(len(scales) == 3, f"{weight_scale} is not [out / 8, in / block, 8]")
    rows, columns, blocks = QB4_ROWS * whole[0], 2 * QB4_BYTES * whole[1], scales[1]
    of_rows = scales[::2] == (whole[0], QB4_ROWS)
    require(of_rows, f"scales {weight_scale} of {rows} channels")
    fits = blocks > 0 and columns % (blocks * QB4_BLOCK) == 0
    require(fits, f"scales {weight_scale} of rows of {columns} values")
    return rows, columns


def expert_linear(
    x: TensorType,
    weight: TensorType,
    experts: TensorType,
    bias: TensorType | None,
    transposed: bool,
) -> Rule:
    """`kvc::expert_linear`: multiply each row by the matrix of its expert.

    x is [rows, in]; weight is [experts, out, in], or [experts, in, out] if
    `transposed`.
    """
    text = f"rows {x} times experts {weight}"
    require(len(x.dims) == 2 and len(weight.dims) == 3, text)
    require(x.dtype.is_floating and x.dtype is weight.dtype, text)
    count, *sizes = shape_of(weight)
    results, columns = reversed(sizes) if transposed else sizes
    require(shape_of(x)[1] == columns, text)
    require_experts(experts, shape_of(x)[0])
    same = bias is None or bias.dtype is x.dtype
    require(same and fits_experts(bias, count, results), f"bias {bias} of {weight}")
    return ((x.dtype, (shape_of(x)[0], results)),)


def expert_linear_qd8(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    weight: TensorType,
    weight_scale: TensorType,
    experts: TensorType,
    bias: TensorType | None,
) -> Rule:
    """`kvc::expert_linear_qd8`: weight int8 [experts, out, in]."""
    require(len(q.dims) == 2 and len(weight.dims) == 3, f"{q} times experts {weight}")
    require(weight.dtype is DType.INT8, f"expert_linear_qd8 with {weight}")
    count, results, columns = shape_of(weight)
    floats = weight_scale.dtype is DType.FLOAT32
    require(
        floats and fits_experts(weight_scale, count, results), f"scales {weight_scale}"
    )
    require_experts(experts, shape_of(q)[0])
    require(fits_experts(bias, count, results), f"bias {bias} of {weight}")
    require(bias is None or bias.dtype is DType.FLOAT32, f"bias {bias}")
    return _quantized_linear(q, scale, zero_point, (results, columns), None)


def require_experts(experts: TensorType, rows: int) -> None:
    """Raise `ShapeMismatch` unless `experts` has one expert index for each row."""
    fits = experts.dtype is DType.INT64 and shape_of(experts) == (rows,)
    require(fits, f"experts {experts} of {rows} rows")


def fits_experts(tensor: TensorType | None, count: int, results: int) -> bool:
    """Tell whether a tensor is None, or has the shape [count, results]."""
    return tensor is None or shape_of(tensor) == (count, results)


def _quantized_linear(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    weight: tuple[int, int],
    bias: TensorType | None,
) -> Rule:
    others = (scale, DType.FLOAT32, 1), (zero_point, DType.INT32, 1)
    return rows_times(q, others, weight, bias)


def rows_times(
    q: TensorType,
    others: Sequence[tuple[TensorType, DType, int]],
    weight: tuple[int, int],
    bias: TensorType | None,
) -> Rule:
    """Multiply quantized rows by the transpose of a weight [out, in].

    Args:
        q: int8 [..., in].
        others: the other tensors of the quantized rows, such as scales, each with its
            dtype and its number of elements per row.
        weight: shape of the weight, [out, in].
        bias: float32 [out].
    """
    require(bool(q.dims) and q.dims[-1] != 0, "a quantized linear of {}", q)
    require(q.dtype is DType.INT8, "a quantized linear of {}", q)
    lead = shape_of(q)[:-1]
    for other, dtype, count in others:
        fits = other.dtype is dtype and shape_of(other) == (*lead, count)
        require(fits, "{} of quantized rows {}", other, q)
    require(bias is None or bias.dtype is DType.FLOAT32, "bias {}", bias)
    return ((DType.FLOAT32, linear(q, TensorType(DType.INT8, weight), bias)[0][1]),)
