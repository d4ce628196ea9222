"""What the backend `cpu` refuses although its kernels have the op."""

from kvc.schema.backends.cpu import LACKS, RULES, why_not
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.ops import CONTROL_OPS, OPS, Aliasing
from kvc.schema.types import Affine, TensorType

F32, I64 = DType.FLOAT32, DType.INT64


def operand(dtype: DType, *dims: int | Affine) -> Operand:
    return Operand(TensorType(dtype, dims), constant=True)


def test_every_op_that_computes_is_run_or_listed_as_lacking():
    computing = {op for op, spec in OPS.items() if spec.aliasing is not Aliasing.VIEW}

    assert computing - RULES.keys() - CONTROL_OPS == LACKS.keys()


def test_what_indices_select_has_no_more_dims_than_an_operand():
    x = TensorType(F32, (2,) * 8)
    for width, taken in ((1, True), (2, False), (8, False)):
        index = operand(I64, *(1,) * width)
        arguments = (Operand(x, constant=False), (index,), operand(F32), False)
        reason = why_not("aten::index_put", arguments, [x])
        assert (reason == "") is taken, reason
