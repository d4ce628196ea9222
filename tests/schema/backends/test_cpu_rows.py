"""Rows that are quantized, and weights, which the backend `cpu` leaves to others."""

from kvc.schema.backends.cpu import why_not
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, TensorType

F32, I8, I32, I64 = DType.FLOAT32, DType.INT8, DType.INT32, DType.INT64


def operand(dtype: DType, *dims: int | Affine) -> Operand:
    return Operand(TensorType(dtype, dims), constant=True)


def test_weights_whose_sizes_only_a_call_knows():
    """A call has no check for how blocks divide rows."""
    rows = operand(I8, 2, 64), operand(F32, 2, 1), operand(I32, 2, 1)
    result = [TensorType(F32, (2, 8))]
    weight = operand(DType.UINT8, 1, 8, 8, 4)
    for blocks, taken in ((2, True), (Affine(0, (("s", 1),)), False)):
        scale = operand(DType.BFLOAT16, 1, blocks, 8)
        reason = why_not("kvc::linear_qb4", (*rows, weight, scale, None), result)
        assert (reason == "") is taken, reason
        blocks_of_rows = operand(I8, 2, 2), operand(I8, 2, 2)
        arguments = (*rows[:2], *blocks_of_rows, weight, scale, None, None)
        reason = why_not("kvc::linear_q4", arguments, result)
        assert (reason == "") is taken, reason


def test_a_table_whose_blocks_only_a_call_knows():
    """At 1, 32 and 64 blocks, which are tried, 64 values divide; at 3 they do not."""
    some, ids = Affine(0, (("s", 1),)), operand(I64, 3)
    for width, blocks, taken in (
        (64, (2,), True),
        (64, (some,), False),
        (some, (2,), False),
        (some, (), True),
    ):
        table = operand(I8, 9, width), operand(F32, 9, *blocks)
        result = [TensorType(F32, (3, width))]
        reason = why_not("kvc::embedding_q8", (*table, ids), result)
        assert (reason == "") is taken, reason


def test_rows_whose_sums_int32_does_not_hold():
    """Depth is that of rows of a product, however their blocks lie."""
    for depth, taken in ((65_536, True), (65_568, False), (Affine(0, (("s", 1),)), 0)):
        rows = operand(I8, 2, depth), operand(F32, 2, 1)
        blocks = operand(I8, 2, 2048), operand(I8, 2, 2048)
        weight = operand(I8, 4, 3, depth), operand(F32, 4, 3, 1)
        arguments = (*rows, *blocks, *weight, operand(I64, 2), None)
        reason = why_not("kvc::expert_linear_q8", arguments, [TensorType(F32, (2, 3))])
        assert (reason == "") is bool(taken), reason
