"""Linears, quantized linears and matrix products.

Each row is quantized without regard to other rows. A row with NaN, infinities, or a
range beyond float32 gives meaningless numbers, which need not be NaN: the library finds
minimum and maximum by comparisons that can miss NaN. All other rows stay right.
"""

from collections.abc import Mapping
from functools import partial

from kvc.runtime.delegates.xnnpack import layouts
from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.functions import Binary
from kvc.runtime.delegates.xnnpack.layouts import order_of
from kvc.runtime.delegates.xnnpack.nodes import Constant, Define, Dims, Tensor, Weight
from kvc.schema.ops.products import QB4_ROWS

Trio = tuple[Tensor, Tensor, Tensor]


def _quantize_rows(b: Builder, dims: Dims, x: Tensor) -> Trio:
    """Quantize rows into one tensor, which stands for the operator's three results."""
    rows = b.quantize(x)
    return rows, rows, rows


def _quantized_linear(
    b: Builder,
    dims: Dims,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    weight: Constant,
    weight_scale: Constant,
    bias: Constant | None,
    *,
    kind: str,
) -> Tensor:
    assert q is scale is zero_point, "not the results of one instruction"
    rows, layout = weight.dims[0], layouts.PLAIN
    assert isinstance(rows, int), "data has a size"
    if kind == "int4":
        rows, layout = rows * QB4_ROWS, layouts.ROWS
    packed = weight_of(kind, weight, (rows, q.dims[-1]), bias, layout, weight_scale)
    return b.fully_connected(q, packed, bias)


def _linear(
    b: Builder, dims: Dims, x: Tensor, weight: Constant, bias: Constant | None
) -> Tensor:
    return b.fully_connected(x, weight_of("float32", weight, weight.dims, bias), bias)


def _matmul(b: Builder, dims: Dims, x: Tensor, y: Tensor) -> Tensor:
    return _product(b, x, y, None)


def _addmm(
    b: Builder, dims: Dims, x: Tensor, first: Tensor, second: Tensor, *_: object
) -> Tensor:
    row = len(x.dims) == 1 and x.dims == dims[-1:]
    if row and isinstance(x, Constant) and isinstance(second, Constant):
        return _product(b, first, second, x)
    return b.binary(Binary.ADD, x, _product(b, first, second, None))


def _product(b: Builder, x: Tensor, y: Tensor, bias: Constant | None) -> Tensor:
    """Multiply matrices; if the right operand is a constant, it is packed once."""
    y, turned = _without_transpose(y)
    if not isinstance(y, Constant):
        return b.product(x, y, turned)
    if len(y.dims) == 2:
        layout = layouts.PLAIN if turned else layouts.IN_OUT
        packed = weight_of("float32", y, y.dims, bias, layout)
        return b.fully_connected(x, packed, bias, in_out=not turned)
    layout = layouts.BATCHES_TRANSPOSED if turned else layouts.BATCHES
    return b.product(x, weight_of("float32", y, y.dims, None, layout), turned)


def _without_transpose(y: Tensor) -> tuple[Tensor, bool]:
    """Return the tensor whose last two axes were swapped to make y, and True.

    If y was not made in this way, return y and False.
    """
    rank = len(y.dims)
    if y.producer is None or order_of(y) != [*range(rank - 2), rank - 1, rank - 2]:
        return y, False
    return next(y.producer.inputs), True


def weight_of(
    kind: str,
    weight: Constant,
    dims: Dims,
    bias: Constant | None,
    layout: str = layouts.PLAIN,
    scale: Constant | None = None,
) -> Weight:
    """Return named data as a weight to be packed, with its scales and bias.

    Args:
        kind: kind of the weight, as in `Weight`.
        weight: the data.
        dims: the weight's shape in its layout.
        bias: the bias that the library adds to the products; None for no bias.
        layout: a layout of `layouts.py`.
        scale: scales of the rows or blocks of a quantized weight.
    """
    scales = None if scale is None else scale.name
    names = (weight.name, scales, None if bias is None else bias.name)
    return Weight(dims, kind=kind, names=names, layout=layout)


DEFINITIONS: Mapping[str, Define] = {
    "aten::addmm": _addmm,
    "aten::bmm": _matmul,
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::mm": _matmul,
    "kvc::linear_qb4": partial(_quantized_linear, kind="int4"),
    "kvc::linear_qd8": partial(_quantized_linear, kind="int8"),
    "kvc::quantize_rows": _quantize_rows,
}
