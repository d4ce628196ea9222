"""Operands of too few dims, or none: refused before a size is asked for."""

import pytest

from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import TensorType


def tensor(*dims, dtype=DType.FLOAT32):
    return TensorType(dtype, dims)


ATTENTION = "aten::scaled_dot_product_attention"
PLAIN = (None, False, None, False)
INT8 = DType.INT8
NO_ROWS = tensor(2, 0, dtype=INT8), tensor(2, 1), tensor(2, 1, dtype=DType.INT32)


@pytest.mark.parametrize(
    ("op", "arguments", "text"),
    [
        ("aten::cat", ((tensor(2, 3), tensor(2)), 1), "cat of different ranks"),
        (
            "aten::conv_transpose1d",
            (tensor(1, 2), tensor(2, 3, 4), None, (1,), (0,), (0,), 1, (1,)),
            "convolution of",
        ),
        (
            "aten::conv_transpose1d",
            (tensor(1, 2), tensor(2, 3), None, (), (), (), 1, ()),
            "convolution of",
        ),
        (ATTENTION, (tensor(3, 4), *(tensor(2, 5, 4),) * 2, *PLAIN), "attention of"),
        (ATTENTION, (*(tensor(4),) * 3, *PLAIN), "attention of"),
        ("kvc::append", (tensor(2, 3, 9), tensor(2, 3), 2), " after "),
        ("kvc::replace", (tensor(2, 3, 9), tensor(2, 3), 2), " in place of "),
        (
            "kvc::cache_update",
            (tensor(2, 3, 9), tensor(2, 3), None, 2, "linear", None, 0),
            " into ",
        ),
        (
            "kvc::linear_qd8",
            (*NO_ROWS, tensor(8, 0, dtype=INT8), tensor(8), None),
            "a quantized linear of",
        ),
    ],
)
def test_operands_of_too_few_dims_are_refused(op, arguments, text):
    with pytest.raises(ShapeMismatch, match=text):
        OPS[op].rule(*arguments)
