"""Operators that take rows or elements by an index, which the function checks.

The functions have the parameters and results that `operators.py` describes.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.lowering.builder import FLOAT, HALF
from kvc.runtime.delegates.lowering.context import Emit, Made, OpContext
from kvc.schema.backends.primitives import Primitive

_P = Primitive
_FLOATS: Final = (FLOAT, HALF)


def _checked(line: OpContext, index: str, count: int, *, wraps: bool = False) -> str:
    """Record the valid range of an index, and return the index.

    The result is clamped to the range if the device has the trait
    `DeviceTraits.checked`.

    Args:
        line: the instruction.
        index: a tensor of integers.
        count: the number of rows or elements to choose from.
        wraps: whether the indices from -count to -1 count from the end.
    """
    build = line.build
    line.note(index, -count if wraps else 0, count)
    if wraps:
        back = build.with_number(_P.ADD, index, count)
        below = build.binary(_P.GREATER, build.number(0, build.dtype(index)), index)
        index = build.where(below, back, index)
    if not line.traits.checked:
        return index
    index = build.with_number(_P.MAXIMUM, index, 0)
    return build.with_number(_P.MINIMUM, index, count - 1)


def _rows(line: OpContext, table: str, index: str, *, wraps: bool = False) -> str:
    count = line.build.shape(table)[0]
    return line.build.rows(table, _checked(line, index, count, wraps=wraps))


def _embedding(line: OpContext, table: object, index: object) -> Made:
    """Look up rows of a table, in the dtype in which a product can share the table."""
    read = line.factor if line.dtypes[0] in _FLOATS else line.get
    return _rows(line, read(table), line.get(index))


def _embedding_q8(line: OpContext, table: object, scale: object, index: object) -> Made:
    """Look up rows of an int8 table [rows, columns], and multiply each row by a scale.

    The scales are a tensor [rows].
    """
    build, dtype = line.build, line.traits.products
    at, scales = line.get(index), line.get(scale)
    found = _rows(line, line.get(table), at)
    column = build.reshape(scales, (*build.shape(scales), 1))
    own = _rows(line, column, at)
    return build.binary(_P.MUL, build.cast(found, dtype), own)


def _selected(line: OpContext, x: object, axis: int, index: object) -> Made:
    """Take slices along an axis, by a transpose that makes this axis the first axis."""
    build, name = line.build, line.get(x)
    rank = len(build.shape(name))
    order = [axis % rank, *(n for n in range(rank) if n != axis % rank)]
    turned = build.transpose(name, tuple(order))
    at = build.reshape(line.get(index), (line.shape[axis],))
    made = _rows(line, turned, at)
    return build.transpose(made, tuple(order.index(n) for n in range(rank)))


def _indexed(line: OpContext, x: object, indices: Sequence[object]) -> Made:
    return _rows(line, line.get(x), line.get(indices[0]), wraps=True)


def _gathered(line: OpContext, x: object, axis: int, index: object) -> Made:
    build, name, at = line.build, line.get(x), line.get(index)
    along = axis % len(line.shape)
    for other, size in enumerate(line.shape):
        if other != along:
            name = build.part(name, other, range(size))
    found = _checked(line, at, build.shape(name)[along])
    return build.along(name, found, along)


ROWS: Final[Mapping[str, Emit]] = {
    "aten::embedding": _embedding,
    "kvc::embedding_q8": _embedding_q8,
    "aten::index_select": _selected,
    "aten::index.Tensor": _indexed,
    "aten::gather": _gathered,
}
