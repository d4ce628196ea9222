# ruff: noqa: E501  a table reads best with one line a case
import pytest
from ir_samples import I64, value

from kvc.compiler.import_fx.normalize import (
    Made,
    Unsupported,
    arguments_of,
    is_known,
    normalize,
)
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.types import Affine, TensorType

X, Y = value(0, 2, 6), value(1, 2, 6)
F32 = DType.FLOAT32
SEQ = Affine(0, (("seq", 1),))


def kind(*dims, dtype=F32):
    return TensorType(dtype, dims)


@pytest.mark.parametrize(
    ("traced", "named", "result", "op", "arguments"),
    [
        ("add.Tensor", {"self": X, "other": 2, "alpha": 1}, kind(2, 6), "add.Scalar", (X, 2, 1)),
        ("add.Tensor", {"self": X, "other": Y, "alpha": 1}, kind(2, 6), "add.Tensor", (X, Y, 1)),
        ("mul.Tensor", {"self": X, "other": 0.5}, kind(2, 6), "mul.Scalar", (X, 0.5)),
        ("eq.Tensor", {"self": X, "other": True}, kind(2, 6), "eq.Scalar", (X, True)),
        ("div.Tensor_mode", {"self": X, "other": 2, "rounding_mode": "floor"}, kind(2, 6), "div.Scalar_mode", (X, 2, "floor")),
        ("floor_divide", {"self": X, "other": 2}, kind(2, 6), "div.Scalar_mode", (X, 2, "floor")),
        ("floor_divide", {"self": X, "other": Y}, kind(2, 6), "floor_divide", (X, Y)),
        ("_unsafe_view", {"self": X, "size": (3, -1)}, kind(3, 4), "view", (X, (3, 4))),
        ("reshape", {"self": X, "shape": (-1,)}, kind(12), "view", (X, (12,))),
        ("expand", {"self": X, "size": (3, -1, -1), "implicit": False}, kind(3, 2, 6), "expand", (X, (3, 2, 6))),
        ("t", {"self": X}, kind(6, 2), "transpose.int", (X, 0, 1)),
        ("t", {"self": value(0, 6)}, kind(6), "alias", (value(0, 6),)),
        ("squeeze", {"self": value(0, 1, 6, 1)}, kind(6), "squeeze.dims", (value(0, 1, 6, 1), (0, 2))),
        ("squeeze.dim", {"self": X, "dim": 0}, kind(2, 6), "squeeze.dims", (X, (0,))),
        ("slice.Tensor", {"self": X, "dim": 1, "start": None, "end": 2**63 - 1, "step": 1}, kind(2, 6), "slice.Tensor", (X, 1, 0, None, 1)),
        ("split.Tensor", {"self": X, "split_size": 4, "dim": 1}, kind(2, 4), "split_with_sizes", (X, (4, 2), 1)),
        ("split.Tensor", {"self": X, "split_size": 3, "dim": -1}, kind(2, 3), "split_with_sizes", (X, (3, 3), -1)),
        ("arange", {"end": 4, "dtype": None}, kind(4, dtype=I64), "arange.start_step", (0, 4, 1, I64)),
        ("arange.start", {"start": 1, "end": 4}, kind(3, dtype=I64), "arange.start_step", (1, 4, 1, I64)),
        ("zeros", {"size": (2,), "pin_memory": False}, kind(2), "full", ((2,), 0, F32)),
        ("ones_like", {"self": X, "memory_format": None}, kind(2, 6), "full", ((2, 6), 1, F32)),
        ("new_full", {"self": X, "size": (2,), "fill_value": 7}, kind(2), "full", ((2,), 7, F32)),
        ("full", {"size": (2,), "fill_value": SEQ}, kind(2), "full", ((2,), SEQ, F32)),
        ("scalar_tensor", {"s": 3}, kind(), "full", ((), 3, F32)),
        ("_to_copy", {"self": X, "dtype": DType.FLOAT16}, kind(2, 6, dtype=DType.FLOAT16), "_to_copy", (X, DType.FLOAT16)),
        ("_to_copy", {"self": X, "dtype": None, "device": "cpu"}, kind(2, 6), "clone", (X,)),
        ("_softmax", {"self": X, "dim": 1, "half_to_float": False}, kind(2, 6), "softmax.int", (X, 1)),
        ("sum", {"self": X, "dtype": None}, kind(), "sum.dim_IntList", (X, None, False)),
        ("mean", {"self": X, "dtype": None}, kind(), "mean.dim", (X, None, False)),
        ("max", {"self": X}, kind(), "amax", (X, (), False)),
        ("clamp_min", {"self": X, "min": 0}, kind(2, 6), "clamp", (X, 0, None)),
        ("clamp_max", {"self": X, "max": 1}, kind(2, 6), "clamp", (X, None, 1)),
        ("layer_norm", {"input": X, "normalized_shape": (6,), "weight": None, "bias": None, "eps": 1e-5, "cudnn_enable": False}, kind(2, 6), "layer_norm", (X, (6,), None, None, 1e-5)),
    ],
)  # fmt: skip
def test_a_traced_op_becomes_an_op_of_the_table(traced, named, result, op, arguments):
    call = normalize(f"aten::{traced}", named, result)
    assert call.op == f"aten::{op}"
    assert arguments_of(call) == arguments


@pytest.mark.parametrize(
    ("start", "end", "step", "places"),
    [
        (None, None, 1, (0, 6, 1)),
        (2, 2**63 - 1, 1, (2, 6, 1)),
        (-4, -1, 1, (2, 5, 1)),
        (0, SEQ, 1, (0, SEQ, 1)),
        (1, 6, 2, (1, 6, 2)),
    ],
)
def test_a_slice_that_is_written_becomes_an_index_copy(start, end, step, places):
    named = {"self": X, "src": Y, "dim": 1, "start": start, "end": end, "step": step}
    call = normalize("aten::slice_scatter", named, kind(2, 6))
    index = call.named["index"]
    assert isinstance(index, Made)
    assert (call.op, call.named["dim"]) == ("aten::index_copy", 1)
    assert arguments_of(index.call) == (*places, I64)
    assert index.type == kind(6, dtype=I64)


@pytest.mark.parametrize(
    ("traced", "named", "result", "reason"),
    [
        ("linalg_svd", {"A": X}, kind(2), "no kernel"),
        ("sum", {"self": X, "dtype": DType.FLOAT64}, kind(), "dtype=.* is not supported"),
        ("embedding", {"weight": X, "indices": Y, "max_norm": 1.0}, kind(2, 6, 6), "max_norm=1.0 is not supported"),
        ("scaled_dot_product_attention", {"dropout_p": 0.1}, kind(2), "dropout_p=0.1"),
        ("full", {"size": (2,), "fill_value": X}, kind(2), "a fill value that is a tensor"),
        ("split.Tensor", {"self": value(0, SEQ), "split_size": 2, "dim": 0}, kind(2), "split of a dynamic dimension"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused(traced, named, result, reason):
    with pytest.raises(Unsupported, match=reason):
        normalize(f"aten::{traced}", named, result)


def test_an_argument_that_is_no_value_of_the_ir_is_refused():
    call = normalize("aten::neg", {"self": object()}, kind(2))
    with pytest.raises(Unsupported, match="an argument of type object"):
        arguments_of(call)


def test_an_op_is_known_by_the_table_or_by_a_rule():
    assert is_known("aten::neg")
    assert is_known("aten::zeros_like")
    assert not is_known("aten::linalg_svd")
    assert "aten::zeros_like" not in OPS
