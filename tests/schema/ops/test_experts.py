import pytest

from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import TensorType


def tensor(*dims: int, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, dims)


INT8, INT32, INT64 = DType.INT8, DType.INT32, DType.INT64
CHOSEN = tensor(3, dtype=INT64)
FLOAT = (tensor(3, 8), tensor(4, 5, 8), CHOSEN, tensor(4, 5), False)
QUANTIZED = (
    tensor(3, 8, dtype=INT8),
    tensor(3, 1),
    tensor(3, 1, dtype=INT32),
    tensor(4, 5, 8, dtype=INT8),
    tensor(4, 5),
    CHOSEN,
    tensor(4, 5),
)


def rule(op: str, *arguments: object) -> object:
    return OPS[op].rule(*arguments)


def test_each_row_becomes_a_row_of_results():
    wanted = ((DType.FLOAT32, (3, 5)),)
    assert rule("kvc::expert_linear", *FLOAT) == wanted
    turned = (tensor(3, 8), tensor(4, 8, 5), CHOSEN, None, True)
    assert rule("kvc::expert_linear", *turned) == wanted
    assert rule("kvc::expert_linear_qd8", *QUANTIZED) == wanted
    assert rule("kvc::expert_linear_qd8", *QUANTIZED[:6], None) == wanted


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, tensor(3, 7)),
        (0, tensor(1, 3, 8)),
        (0, tensor(3, 8, dtype=DType.BFLOAT16)),
        (0, tensor(3, 8, dtype=INT8)),
        (1, tensor(5, 8)),
        (1, tensor(4, 8, 5)),
        (1, tensor(4, 5, 8, dtype=INT8)),
        (2, tensor(2, dtype=INT64)),
        (2, tensor(3, 1, dtype=INT64)),
        (2, tensor(3, dtype=INT32)),
        (3, tensor(5)),
        (3, tensor(4, 4)),
        (3, tensor(4, 5, dtype=DType.BFLOAT16)),
        (4, True),
    ],
)
def test_what_does_not_fit_is_refused(place, wrong):
    with pytest.raises(ShapeMismatch):
        rule("kvc::expert_linear", *FLOAT[:place], wrong, *FLOAT[place + 1 :])


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, tensor(3, 8)),
        (0, tensor(3, 7, dtype=INT8)),
        (0, tensor(1, 3, 8, dtype=INT8)),
        (1, tensor(1, 1)),
        (2, tensor(3, 1)),
        (3, tensor(4, 5, 8)),
        (3, tensor(5, 8, dtype=INT8)),
        (4, tensor(5)),
        (4, tensor(4, 5, dtype=DType.BFLOAT16)),
        (5, tensor(2, dtype=INT64)),
        (5, tensor(3, dtype=INT32)),
        (6, tensor(5)),
        (6, tensor(4, 5, dtype=DType.BFLOAT16)),
    ],
)
def test_what_does_not_fit_quantized_experts_is_refused(place, wrong):
    changed = (*QUANTIZED[:place], wrong, *QUANTIZED[place + 1 :])
    with pytest.raises(ShapeMismatch):
        rule("kvc::expert_linear_qd8", *changed)
