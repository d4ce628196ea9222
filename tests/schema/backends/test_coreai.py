"""The list of what the backend `coreai` takes."""

import pytest

from kvc.schema.backends.coreai import LIST, why_apart, why_not
from kvc.schema.backends.known import why_apart as known_why_apart
from kvc.schema.backends.known import why_left
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType


def tensor(*dims: int, dtype: DType = DType.FLOAT32, constant: bool = False) -> Operand:
    return Operand(TensorType(dtype, dims), constant)


X, W = tensor(2, 4), tensor(4, 4, constant=True)
N, B = tensor(2, 4, dtype=DType.INT64), tensor(2, 4, dtype=DType.BOOL)
HALF = tensor(1, 2, 8, 4, dtype=DType.FLOAT16)
CACHE, ROWS = tensor(1, 2, 8, 4), tensor(1, 2, 1, 4)
PLACE = tensor(1, dtype=DType.INT64)
ATTEND = (
    *(ROWS, CACHE, CACHE, PLACE, None, True),
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
    ("op", "arguments", "result"),
    [
        ("aten::linear", (X, W, None), X),
        ("aten::linear", (tensor(4), W, None), tensor(4)),
        ("aten::add.Tensor", (N, N, 1), N),
        ("aten::lt.Scalar", (N, 3), B),
        ("aten::where.self", (B, X, X), X),
        ("aten::index.Tensor", (W, (N,)), tensor(2, 4, 4)),
        ("aten::_to_copy", (N, DType.FLOAT32), X),
        ("aten::view", (HALF, (8, 8)), tensor(8, 8, dtype=DType.FLOAT16)),
        ("kvc::cache_update", (CACHE, ROWS, PLACE, -2, "circular", None, 0), CACHE),
        ("kvc::cache_update", (HALF, ROWS, PLACE, 2, "linear", None, 0), HALF),
        ("aten::sum.dim_IntList", (X, None, False), tensor(1)),
        ("aten::index_select", (W, 1, N), W),
        ("kvc::cache_update", (HALF, HALF, PLACE, -2, "linear", None, 0), HALF),
        ("kvc::attention", attending(mask=tensor(1, 1, 1, 8)), ROWS),
        ("kvc::attention", attending(k=HALF, v=HALF), ROWS),
    ],
)
def test_it_takes(op: str, arguments: tuple[object, ...], result: Operand):
    assert why_not(op, arguments, [result.type]) == ""


@pytest.mark.parametrize(
    ("op", "arguments", "result", "why"),
    [
        ("aten::sinh", (X,), X, "it does not run aten::sinh"),
        ("aten::relu", (tensor(*(1,) * 6),), X, "1 to 5 dims"),
        ("aten::view", (tensor(2, 0), (0,)), tensor(0), "has no elements"),
        ("aten::relu", (tensor(2, dtype=DType.BFLOAT16),), X, "bfloat16"),
        ("aten::relu", (HALF,), HALF, "no tensors of float16"),
        ("aten::relu", (N,), N, "no tensors of int64"),
        ("aten::mul.Scalar", (N, 2**31), N, "no number of 32 bits"),
        ("aten::mul.Scalar", (X, float("inf")), X, "no finite number"),
        ("aten::mul.Scalar", (N, 0.5), N, "an integer tensor and a float"),
        ("aten::mul.Tensor", (N, X), X, "several kinds: float32, int64"),
        ("aten::add.Tensor", (X, X, 2), X, "alpha 2"),
        ("aten::logical_and", (N, B), B, "it takes bool, not int64"),
        ("aten::pow.Tensor_Scalar", (X, 1.7), X, "exponent 1.7"),
        ("aten::where.self", (N, X, X), X, "a condition int64"),
        ("aten::masked_fill.Scalar", (X, X, 0.0), X, "a mask float32"),
        ("aten::layer_norm", (X, (2, 4), None, None, 1e-5), X, "one axis, not"),
        ("aten::linear", (X, tensor(4, 4), None), X, "no matrix of the model"),
        ("aten::matmul", (tensor(4), X), tensor(2), "the product of"),
        ("aten::addmm", (X, X, W, 1, 2), X, "beta 1, alpha 2"),
        ("aten::index.Tensor", (W, (None, N)), W, "no index of the first axis"),
        ("aten::index.Tensor", (W, (N, N)), W, "indices of several axes"),
        ("aten::embedding", (N, N), N, "it takes no tensors of int64"),
        ("aten::embedding", (W, B), W, "an index bool"),
        ("aten::embedding", (tensor(0, 4), N), W, "has no elements"),
        ("aten::_to_copy", (X, DType.INT64), N, "float32 as int64"),
        (
            "kvc::cache_update",
            (tensor(1, 8, 4), tensor(1, 1, 4), PLACE, -2, "linear", None, 0),
            CACHE,
            "axis -2 of",
        ),
        ("kvc::attention", attending(sinks=tensor(2)), ROWS, "sinks"),
        (
            "kvc::attention",
            attending(mask=tensor(1), layout="circular"),
            ROWS,
            "a ring",
        ),
        ("kvc::attention", attending(mask=N), ROWS, "a mask int64"),
        (
            "aten::scaled_dot_product_attention",
            (X, X, X, None, False, None, False),
            X,
            "attention of float32",
        ),
    ],
)
def test_it_leaves(op: str, arguments: tuple[object, ...], result: Operand, why: str):
    assert why in why_not(op, arguments, [result.type])


def test_reasons_are_told_in_reports():
    assert "the method computes the index" in why_apart("kvc::cache_update")
    assert known_why_apart("coreai", "kvc::check_index") == why_apart(
        "kvc::check_index"
    )
    assert known_why_apart("coreai", "kvc::append") != ""
    left = why_left("coreai", "aten::relu", (X,), [X.type], False)
    assert left == "there is no matrix product"
