"""Shape rules of rows quantized to int8 in blocks of 32, and of products of such rows.

The scale of each block is the row's scale times an integer, the block's factor, so that
a product adds integers only. `kvc::quantize_blocks` returns the factors.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.ops.products import (
    fits_experts,
    int4_matrix,
    require_experts,
    rows_times,
)
from kvc.schema.ops.shapes import Rule, Shape, matrix_of, require, shape_of
from kvc.schema.types import TensorType

BLOCK: Final = 32  # values of a row that share a zero point and a factor
# The maximum number of weight values that share a scale. Smaller blocks are more exact,
# but enlarge the file and the bytes that a step reads: four bytes per scale.
WEIGHT_BLOCK: Final = 256
# Dtypes of the scales and of the minimums of the blocks of an int4 weight.
INT4_SCALES: Final = frozenset({DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32})
INT4_MINIMUMS: Final = frozenset({DType.FLOAT16, DType.FLOAT32})
# For each product of quantized rows, the number of arguments that form the rows: q,
# scale, zero, factor.
ROW_ARGUMENTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "kvc::linear_qd8": 3,
        "kvc::linear_qb4": 3,
        "kvc::linear_q8": 4,
        "kvc::linear_q4": 4,
    }
)


def quantize_blocks(x: TensorType) -> Rule:
    """`kvc::quantize_blocks`: quantize rows to int8 in blocks of 32.

    The results are the int8 rows, the scales [..., 1], and the zero points and factors
    of the n blocks of each row, both [..., n].
    """
    require(bool(x.dims) and x.dims[-1] != 0, "quantize_blocks of {}", x)
    require(x.dtype is DType.FLOAT32, "quantize_blocks of {}", x)
    *lead, width = shape_of(x)
    blocks = (*lead, block_count(width))
    return (
        (DType.INT8, (*lead, width)),
        (DType.FLOAT32, (*lead, 1)),
        (DType.INT8, blocks),
        (DType.INT8, blocks),
    )


def linear_q8(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    factor: TensorType,
    weight: TensorType,
    weight_scale: TensorType,
    bias: TensorType | None,
) -> Rule:
    """`kvc::linear_q8`: weight int8 [out, in], weight_scale float32 [out, m].

    A weight row has m blocks of equal size, each with a scale.
    """
    require(weight.dtype is DType.INT8, "linear_q8 with {}", weight)
    sizes = matrix_of(weight)
    _require_scales(weight_scale, sizes)
    return _product(q, scale, zero_point, factor, sizes, bias)


def linear_q4(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    factor: TensorType,
    weight: TensorType,
    weight_scale: TensorType,
    bias: TensorType | None,
    weight_minimum: TensorType | None,
) -> Rule:
    """`kvc::linear_q4`: weight as that of `kvc::linear_qb4`.

    weight_scale has the shape that it has there, and is bfloat16, float16 or float32.
    weight_minimum, float16 or float32, has the shape of weight_scale.
    """
    sizes = int4_matrix(weight, weight_scale, INT4_SCALES)
    if weight_minimum is not None:
        fits = weight_minimum.dtype in INT4_MINIMUMS
        same = fits and shape_of(weight_minimum) == shape_of(weight_scale)
        require(same, "minimums {} of scales {}", weight_minimum, weight_scale)
    return _product(q, scale, zero_point, factor, sizes, bias)


def expert_linear_q8(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    factor: TensorType,
    weight: TensorType,
    weight_scale: TensorType,
    experts: TensorType,
    bias: TensorType | None,
) -> Rule:
    """`kvc::expert_linear_q8`: weight int8 [experts, out, in]."""
    require(len(q.dims) == 2 and len(weight.dims) == 3, "{} times {}", q, weight)
    require(weight.dtype is DType.INT8, "expert_linear_q8 with {}", weight)
    count, results, columns = shape_of(weight)
    _require_scales(weight_scale, (count, results, columns))
    require_experts(experts, shape_of(q)[0])
    require(fits_experts(bias, count, results), "bias {} of {}", bias, weight)
    require(bias is None or bias.dtype is DType.FLOAT32, "bias {}", bias)
    return _product(q, scale, zero_point, factor, (results, columns), None)


def _require_scales(scale: TensorType, weight: Shape) -> None:
    """Raise `ShapeMismatch` unless an int8 weight has one or m scales for each row."""
    require(scale.dtype is DType.FLOAT32, "scales {}", scale)
    *rows, columns = weight
    fits = len(scale.dims) == len(weight) and [*shape_of(scale)[:-1]] == rows
    require(fits, "scales {} of rows {}", scale, rows)
    blocks = shape_of(scale)[-1]
    whole = blocks == 1 or (blocks > 0 and columns % (blocks * BLOCK) == 0)
    require(whole, "scales {} of rows of {} values", scale, columns)


def _product(
    q: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    factor: TensorType,
    weight: tuple[int, int],
    bias: TensorType | None,
) -> Rule:
    """Multiply rows q [..., in], quantized in blocks, by the transpose of a weight.

    Args:
        q: int8 [..., in].
        scale: a scale for each row.
        zero_point: a zero point for each block of a row.
        factor: a factor for each block of a row.
        weight: shape of the weight, [out, in].
        bias: float32 [out].
    """
    require(bool(q.dims), "a quantized linear of {}", q)
    count = block_count(shape_of(q)[-1])
    blocks = [(each, DType.INT8, count) for each in (zero_point, factor)]
    return rows_times(q, [(scale, DType.FLOAT32, 1), *blocks], weight, bias)


def weight_blocks(columns: int) -> int:
    """Return the number of scales that the compiler gives each row of an int8 weight.

    Each scale is for a block of the row. The blocks of a row have the same size, a
    multiple of 32 and at most 256 values, and there are as few blocks as possible. A
    row whose size is no multiple of 32 has one scale.
    """
    whole, rest = divmod(columns, BLOCK)
    counts = (n for n in range(1, whole + 1) if whole % n == 0)
    fit = (n for n in counts if columns <= n * WEIGHT_BLOCK)
    return 1 if rest or not whole else next(fit)


def block_count(width: int) -> int:
    """Return the number of blocks of 32 in a row; the last block may be shorter."""
    return -(-width // BLOCK)
