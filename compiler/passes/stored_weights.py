"""Use matrices that a checkpoint has quantized as they are.

In: the name of a matrix whose source has a `StoredLayout`. Out: the constants of a
product by blocks, `kvc::linear_q8` or `kvc::linear_q4`, with the checkpoint's integers,
scales and minimums.
"""

from typing import Final

import torch

from kvc.compiler.ir import Value
from kvc.compiler.passes.weight_book import MethodBuilder, WeightBook
from kvc.compiler.weights.sources import Transform
from kvc.compiler.weights.stored_layout import StoredLayout
from kvc.schema.dtypes import DType
from kvc.schema.ops.products import QB4_BLOCK, QB4_BYTES, QB4_ROWS
from kvc.schema.types import TensorType

_DTYPES: Final = {
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
}


def can_be_used(layout: StoredLayout, weight: Value) -> bool:
    """Tell whether products by blocks can use a matrix [out, in] of a layout."""
    rows, columns = weight.type.dims
    if not (isinstance(rows, int) and isinstance(columns, int)) or not columns:
        return False
    whole = columns % layout.block == 0 and layout.block % QB4_BLOCK == 0
    if layout.bits == 8:
        return layout.block == columns or whole
    return whole and rows % QB4_ROWS == 0


def int8_as_stored(
    weight: Value,
    name: str,
    layout: StoredLayout,
    builder: MethodBuilder,
    book: WeightBook,
) -> tuple[Value, Value]:
    """Return the values int8 [out, in] and the scales float32 [out, blocks]."""
    rows, columns = weight.type.dims
    assert isinstance(columns, int)
    kind = TensorType(DType.INT8, (rows, columns))
    values = book.derive(name, Transform.STORED_INT8, kind)
    kind = TensorType(DType.FLOAT32, (rows, columns // layout.block))
    scales = book.derive(name, Transform.STORED_INT8_SCALE, kind)
    return builder.constant(values), builder.constant(scales)


def int4_as_stored(
    weight: Value,
    name: str,
    layout: StoredLayout,
    builder: MethodBuilder,
    book: WeightBook,
) -> tuple[Value, Value, Value | None]:
    """Return the packed values, the scales, and the minimums if there are any.

    The values are uint8 [out / 8, in / 8, 8, 4]; scales and minimums are [out / 8, in /
    block, 8], of the layout's dtypes.
    """
    rows, columns = weight.type.dims
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    groups, fours = rows // QB4_ROWS, columns // (2 * QB4_BYTES)
    kind = TensorType(DType.UINT8, (groups, fours, QB4_ROWS, QB4_BYTES))
    values = builder.constant(book.derive(name, Transform.STORED_INT4, kind))
    dims = (groups, columns // layout.block, QB4_ROWS)
    kind = TensorType(_DTYPES[layout.scale], dims)
    scales = builder.constant(book.derive(name, Transform.STORED_INT4_SCALE, kind))
    if layout.minimum is None:
        return values, scales, None
    kind = TensorType(_DTYPES[layout.minimum], dims)
    minimums = book.derive(name, Transform.STORED_INT4_MINIMUM, kind)
    return values, scales, builder.constant(minimums)
