"""Shape rule of `kvc::adapted`: what adapters add to the results of a layer."""

from kvc.schema.dtypes import DType
from kvc.schema.ops.shapes import Rule, require, shape_of
from kvc.schema.types import TensorType

MATRIX_DTYPES = (DType.FLOAT32, DType.INT8)


def adapted(
    y: TensorType,
    x: TensorType,
    a: TensorType | None,
    b: TensorType,
    factors: TensorType | None,
    ranks: TensorType,
    adapters: TensorType,
    scales: TensorType,
    gain: TensorType | None,
    offset: TensorType | None,
) -> Rule:
    """`kvc::adapted`: add the product of x with a row's low-rank matrices to y.

    y is [batch, ..., out] and x [batch, ..., in]; a is [adapters, rank, in], b
    [adapters, rank, out]; without a, b multiplies x itself. Each row of the batch has
    the index of an adapter, and a scale. `factors` are [adapters, rank], `gain` and
    `offset` [adapters, out].
    """
    text = f"{y} and {x} adapted by {a} and {b}"
    require(len(y.dims) == len(x.dims) >= 2 and len(b.dims) == 3, text)
    require(y.dtype is x.dtype is DType.FLOAT32 and b.dtype in MATRIX_DTYPES, text)
    (*lead, results), (*others, columns) = shape_of(y), shape_of(x)
    count, rank, width = shape_of(b)
    require(lead == others and width == results, text)
    if a is None:
        require(rank == columns, text)
    else:
        _require(a, b.dtype, (count, rank, columns), "a")
    _require(ranks, DType.INT64, (count,), "ranks")
    _require(adapters, DType.INT64, (lead[0],), "adapters of rows")
    _require(scales, DType.FLOAT32, (lead[0],), "scales of rows")
    widths = ((factors, rank), (gain, results), (offset, results))
    for (part, size), name in zip(widths, ("factors", "gain", "offset"), strict=True):
        if part is not None:
            _require(part, DType.FLOAT32, (count, size), name)
    return ((y.dtype, shape_of(y)),)


def _require(found: TensorType, dtype: DType, dims: tuple[int, ...], name: str) -> None:
    expected = TensorType(dtype, dims)
    require(found == expected, "{} {}, expected {}", name, found, expected)
