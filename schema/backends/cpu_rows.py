"""What the backend `cpu` takes of rows that are quantized, and of their weights.

Its kernels read blocks and depths as the types say. That a size divides another has
been checked at some sizes of a symbol, not of each call: it must be a number here.
"""

from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Results,
    Rule,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.dtypes import DType

MAX_DEPTH: Final = 65_536  # int8 products whose int32 sum is exact


def quantized_rows(arguments: Arguments, results: Results) -> str:
    """Quantize rows of float32."""
    x = operand(arguments[0]).type
    return unknown_dtypes([x], {DType.FLOAT32}) if x.dims else f"a scalar {x}"


def quantized_linear(first: int) -> Rule:
    """Multiply int8 rows by a weight, argument `first`, with its scales after it."""

    def rule(arguments: Arguments, results: Results) -> str:
        depth = operand(arguments[0]).type.dims[-1]
        if not isinstance(depth, int) or depth > MAX_DEPTH:
            return f"int8 rows of {depth} elements"
        weights = [each.type for each in operands_of(arguments[first : first + 2])]
        static = all(kind.is_static for kind in weights)
        return "" if static else f"weights {weights[0]} by scales {weights[1]}"

    return rule


def quantized_table(arguments: Arguments, results: Results) -> str:
    """Look up int8 rows, each with a scale or several."""
    table, scale = (operand(each).type for each in arguments[:2])
    divided = (*table.dims[-1:], *scale.dims[1:])
    if scale.dims[1:] and not all(isinstance(size, int) for size in divided):
        return f"a table {table} with scales {scale}"
    return unknown_dtypes([scale], {DType.FLOAT32})
