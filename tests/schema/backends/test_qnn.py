"""The list of what the backend `qnn` takes."""

import pytest

from kvc.schema.backends.operands import Operand
from kvc.schema.backends.qnn import LIST, why_not
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType


def tensor(*dims: int, dtype: DType = DType.FLOAT32, constant: bool = False) -> Operand:
    return Operand(TensorType(dtype, dims), constant)


X, W = tensor(2, 4), tensor(4, 4, constant=True)
G = tensor(4, constant=True)
CACHE = tensor(1, 2, 8, 4)
ROWS = tensor(1, 2, 1, 4)
PLACE = tensor(1, dtype=DType.INT64)
ATTEND = (
    ROWS,
    CACHE,
    CACHE,
    PLACE,
    None,
    True,
    *(None,) * 6,
    "linear",
    *(None,) * 3,
    0,
)


def attending(**changed: object) -> tuple[object, ...]:
    names = [param.name for param in OPS["kvc::attention"].params]
    return tuple({**dict(zip(names, ATTEND, strict=True)), **changed}.values())


def test_what_it_takes_is_in_the_table_of_operators():
    assert LIST.operators <= OPS.keys()


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("aten::linear", (X, W, None)),
        ("aten::add.Tensor", (X, X, 1)),
        ("aten::mul.Scalar", (X, 0.5)),
        (
            "aten::scaled_dot_product_attention",
            (tensor(1, 4, 1, 4), CACHE, CACHE, None, False, None, True),
        ),
        ("aten::rms_norm", (X, (4,), G, 1e-12)),
        ("kvc::cache_update", (CACHE, ROWS, PLACE, -2, "linear", None, 0)),
        (
            "kvc::cache_update",
            (
                tensor(1, 2, 8, 4, dtype=DType.FLOAT16),
                ROWS,
                PLACE,
                2,
                "linear",
                None,
                0,
            ),
        ),
        ("kvc::attention", ATTEND),
        ("aten::view", (tensor(2, dtype=DType.INT64), (1, 2))),
        ("kvc::check_index", (PLACE, 0, 1, 8)),
    ],
)
def test_it_takes(op: str, arguments: tuple[object, ...]):
    assert why_not(op, arguments, [X.type]) == ""


@pytest.mark.parametrize(
    ("op", "arguments", "reason"),
    [
        ("aten::erf", (X,), "it does not run aten::erf"),
        ("aten::_assert_async.msg", (G, "no"), "it does not run aten::_assert_async"),
        ("aten::silu", (tensor(),), "tensors of 1 to 5 dims, and no float32[]"),
        ("aten::silu", (tensor(1, 1, 1, 1, 1, 2),), "tensors of 1 to 5 dims"),
        ("aten::silu", (tensor(2, dtype=DType.INT64),), "no tensors of int64"),
        ("aten::mul.Scalar", (X, 1e-6), "1e-06 is no number of float16"),
        ("aten::mul.Scalar", (X, 1e6), "no number of float16"),
        ("aten::add.Tensor", (X, X, 2), "alpha 2"),
        ("aten::pow.Tensor_Scalar", (X, 3), "exponent 3"),
        ("aten::linear", (X, tensor(4, 4), None), "no matrix of the model"),
        ("aten::matmul", (X, tensor(4)), "the product of"),
        ("aten::addmm", (X, X, W, 1, 2), "beta 1, alpha 2"),
        ("aten::rms_norm", (X, (2, 4), G, None), "one axis, not (2, 4)"),
        ("aten::rms_norm", (X, (4,), None, None), "no weight of the model's"),
        ("aten::softmax.int", (X, 0), "axis 0 of 2"),
        (
            "kvc::cache_update",
            (tensor(1, 2, 8, 4, dtype=DType.INT8), ROWS, PLACE, 2, "linear", None, 0),
            "no cache int8",
        ),
        (
            "kvc::cache_update",
            (CACHE, ROWS, PLACE, 1, "linear", None, 0),
            "axis 1 of float32[1, 2, 8, 4]",
        ),
        ("kvc::attention", attending(sinks=G), "attention with sinks"),
        ("kvc::attention", attending(k_scale=G), "attention of"),
        ("kvc::attention", attending(softcap=1e9), "softcap"),
        ("kvc::attention", attending(scale=1e-9), "scale"),
        (
            "kvc::attention",
            attending(mask=tensor(1, 1, 1, 8, dtype=DType.FLOAT16)),
            "a mask float16",
        ),
        (
            "aten::scaled_dot_product_attention",
            (ROWS, CACHE, CACHE, None, True, None, False),
            "causal attention without a cache",
        ),
        *(
            (
                "aten::scaled_dot_product_attention",
                (tensor(1, heads, 1, 4), keys, values, None, False, None, False),
                "attention of",
            )
            for heads, keys, values in (
                (1, CACHE, CACHE),
                (3, CACHE, CACHE),
                (2, CACHE, tensor(1, 1, 8, 4)),
            )
        ),
    ],
)
def test_it_leaves(op: str, arguments: tuple[object, ...], reason: str):
    assert reason in why_not(op, arguments, [X.type])
