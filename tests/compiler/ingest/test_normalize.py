# ruff: noqa: E501  a table reads best with one line a case
import pytest
from ir_samples import I64, value

from kvc.compiler.ingest.calls import MadeArgument, OpCall, Unsupported
from kvc.compiler.ingest.indexing import refuse_masks
from kvc.compiler.ingest.normalize import arguments_of, is_known, normalize, why_unknown
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.types import Affine, TensorType

X, Y = value(0, 2, 6), value(1, 2, 6)
PLANES, KERNEL = value(0, 1, 3, 4, 4), value(1, 2, 3, 2, 2)
MASK = value(2, 2, 6, dtype=DType.BOOL)
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
        ("sub.Tensor", {"self": 1, "other": X, "alpha": 2}, kind(2, 6), "rsub.Scalar", (X, 1, 2)),
        ("sub.Tensor", {"self": SEQ, "other": X, "alpha": 1}, kind(2, 6), "rsub.Scalar", (X, SEQ, 1)),
        ("add.Tensor", {"self": 3, "other": X, "alpha": 1}, kind(2, 6), "add.Scalar", (X, 3, 1)),
        ("mul.Tensor", {"self": 3, "other": X}, kind(2, 6), "mul.Scalar", (X, 3)),
        ("lt.Tensor", {"self": 3, "other": X}, kind(2, 6, dtype=DType.BOOL), "gt.Scalar", (X, 3)),
        ("ge.Tensor", {"self": 3, "other": X}, kind(2, 6, dtype=DType.BOOL), "le.Scalar", (X, 3)),
        ("bitwise_and.Scalar_Tensor", {"self": 3, "other": X}, kind(2, 6), "bitwise_and.Scalar", (X, 3)),
        ("gather", {"self": X, "dim": 1, "index": Y, "sparse_grad": False}, kind(2, 6), "gather", (X, 1, Y)),
        ("group_norm", {"input": X, "num_groups": 3, "weight": None, "bias": None, "eps": 0.1, "cudnn_enabled": True}, kind(2, 6), "group_norm", (X, 3, None, None, 0.1)),
        ("_unsafe_view", {"self": X, "size": (3, -1)}, kind(3, 4), "view", (X, (3, 4))),
        ("reshape", {"self": X, "shape": (-1,)}, kind(12), "view", (X, (12,))),
        ("expand", {"self": X, "size": (3, -1, -1), "implicit": False}, kind(3, 2, 6), "expand", (X, (3, 2, 6))),
        ("t", {"self": X}, kind(6, 2), "transpose.int", (X, 0, 1)),
        ("t", {"self": value(0, 6)}, kind(6), "alias", (value(0, 6),)),
        ("transpose.int", {"self": value(0), "dim0": 0, "dim1": -1}, kind(), "alias", (value(0),)),
        ("avg_pool2d", {"self": PLANES, "kernel_size": (2,), "stride": (), "padding": (1,), "ceil_mode": False, "count_include_pad": True, "divisor_override": None}, kind(1, 3, 3, 3), "avg_pool2d", (PLANES, (2, 2), (), (1, 1), False, True, None)),
        ("max_pool2d_with_indices", {"self": PLANES, "kernel_size": (2, 1), "stride": (1,), "padding": (0,), "dilation": (1,), "ceil_mode": False}, kind(1, 3, 3, 4), "max_pool2d_with_indices", (PLANES, (2, 1), (1, 1), (0, 0), (1, 1), False)),
        ("convolution", {"input": PLANES, "weight": KERNEL, "bias": None, "stride": (2,), "padding": (0,), "dilation": (1,), "transposed": False, "output_padding": (0,), "groups": 1}, kind(1, 2, 2, 2), "convolution", (PLANES, KERNEL, None, (2, 2), (0, 0), (1, 1), 1)),
        ("convolution", {"input": PLANES, "weight": KERNEL, "bias": None, "stride": (2,), "padding": (0,), "dilation": (1,), "transposed": True, "output_padding": (0,), "groups": 1}, kind(1, 3, 8, 8), "conv_transpose2d.input", (PLANES, KERNEL, None, (2, 2), (0, 0), (0, 0), 1, (1, 1))),
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
        (-100, 3, 1, (0, 3, 1)),
        (2, 100, 1, (2, 6, 1)),
        (0, SEQ, 1, (0, SEQ, 1)),
        (1, 6, 2, (1, 6, 2)),
    ],
)
def test_a_slice_that_is_written_becomes_an_index_copy(start, end, step, places):
    rows = value(1, 2, 3)
    named = {"self": X, "src": rows, "dim": 1, "start": start, "end": end, "step": step}
    call = normalize("aten::slice_scatter", named, kind(2, 6))
    index = call.named["index"]
    assert isinstance(index, MadeArgument)
    assert (call.op, call.named["dim"]) == ("aten::index_copy", 1)
    assert arguments_of(index.call) == (*places, I64)
    assert index.type == kind(3, dtype=I64)


def test_a_slice_that_is_everything_becomes_a_copy():
    named = {"self": X, "src": Y, "dim": 1, "start": None, "end": 2**63 - 1, "step": 1}
    call = normalize("aten::slice_scatter", named, kind(2, 6))
    assert (call.op, arguments_of(call)) == ("aten::copy", (X, Y))


def test_a_slice_at_the_end_of_a_dynamic_axis_counts_from_its_size():
    tensor, source = value(0, 2, SEQ), value(1, 2, 3)
    named = {
        "self": tensor,
        "src": source,
        "dim": 1,
        "start": -3,
        "end": 2**63 - 1,
        "step": 1,
    }
    index = normalize("aten::slice_scatter", named, tensor.type).named["index"]
    start = Affine(-3, (("seq", 1),))
    assert arguments_of(index.call) == (start, SEQ, 1, I64)


@pytest.mark.parametrize(
    ("size", "place", "start", "end"),
    [
        (6, 2, 2, 3),
        (6, -1, 5, 6),
        (SEQ, 2, 2, 3),
        (SEQ, -1, Affine(-1, SEQ.terms), SEQ),
        (SEQ, SEQ, SEQ, Affine(1, SEQ.terms)),
    ],
)
def test_one_place_that_is_written_becomes_an_index_copy(size, place, start, end):
    tensor, row = value(0, 2, size, 4), value(1, 2, 4)
    named = {"self": tensor, "src": row, "dim": -2, "index": place}
    call = normalize("aten::select_scatter", named, tensor.type)
    index, source = call.named["index"], call.named["source"]
    assert (call.op, call.named["dim"]) == ("aten::index_copy", 1)
    assert arguments_of(index.call) == (start, end, 1, I64)
    assert index.type == kind(1, dtype=I64)
    assert (source.call.op, source.type) == ("aten::view", kind(2, 1, 4))


def test_filling_at_an_index_counts_from_the_back_as_torch_does():
    named = {"self": X, "dim": -1, "index": Y, "value": 3}
    call = normalize("aten::index_fill.int_Scalar", named, X.type)
    assert (call.op, call.named["indices"]) == ("aten::index_put", (None, Y))
    assert arguments_of(call.named["values"].call) == ((), 3, F32)


def test_filling_with_a_tensor_casts_it():
    number = value(3, dtype=I64)
    named = {"self": X, "dim": 0, "index": Y, "value": number}
    call = normalize("aten::index_fill.int_Tensor", named, X.type)
    assert call.named["values"] == MadeArgument(
        OpCall("aten::_to_copy", {"self": number, "dtype": F32}), kind()
    )


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("scatter.reduce", {"reduce": "add"}),
        ("scatter_reduce.two", {"reduce": "sum", "include_self": True}),
    ],
)
def test_scatter_that_adds_becomes_scatter_add(op, given):
    named = {"self": X, "dim": 1, "index": Y, "src": X, **given}
    call = normalize(f"aten::{op}", named, X.type)
    assert (call.op, arguments_of(call)) == ("aten::scatter_add", (X, 1, Y, X))


@pytest.mark.parametrize(
    ("op", "given", "reduce", "whole"),
    [
        ("scatter.reduce", {"reduce": "multiply"}, "prod", True),
        ("scatter_reduce.two", {"reduce": "sum", "include_self": False}, "sum", False),
        ("scatter_reduce.two", {"reduce": "amax", "include_self": True}, "amax", True),
    ],
)
def test_other_scatters_reduce(op, given, reduce, whole):
    named = {"self": X, "dim": 1, "index": Y, "src": X, **given}
    call = normalize(f"aten::{op}", named, X.type)
    assert call.op == "aten::scatter_reduce.two"
    assert arguments_of(call) == (X, 1, Y, X, reduce, whole)


def test_writing_an_empty_slice_copies():
    source = value(1, 2, 0)
    named = {"self": X, "src": source, "dim": 1, "start": 5, "end": 2, "step": 1}
    assert normalize("aten::slice_scatter", named, X.type) == OpCall(
        "aten::clone", {"self": X}
    )


@pytest.mark.parametrize(
    ("op", "named", "place", "number"),
    [
        ("add.Tensor", {"self": 3, "other": X, "alpha": 2}, "self", 3),
        ("div.Tensor", {"self": 1, "other": X}, "self", 1),
        (
            "div.Tensor_mode",
            {"self": 1, "other": X, "rounding_mode": "floor"},
            "self",
            1,
        ),
        ("remainder.Scalar_Tensor", {"self": 5, "other": X}, "self", 5),
        ("maximum", {"self": X, "other": 0.5}, "other", 0.5),
        ("where.self", {"condition": MASK, "self": X, "other": 2.0}, "other", 2.0),
    ],
)
def test_a_number_that_no_overload_takes_becomes_a_tensor(op, named, place, number):
    call = normalize(f"aten::{op}", named, kind(2, 6))
    full = OpCall("aten::full", {"size": (), "fill_value": number, "dtype": F32})
    assert call.named[place] == MadeArgument(full, kind())


@pytest.mark.parametrize(
    ("mask", "values"),
    [
        (value(2, 2, 6, dtype=DType.BOOL), value(3)),
        (value(2, 2, 6, dtype=DType.BOOL), value(3, 1)),
    ],
)
def test_a_value_written_under_a_mask_becomes_a_where(mask, values):
    named = {"self": X, "indices": (mask,), "values": values, "accumulate": False}
    call = normalize("aten::index_put", named, kind(2, 6))
    assert (call.op, arguments_of(call)) == ("aten::where.self", (mask, values, X))


def test_a_mask_of_leading_axes_is_given_the_others():
    mask, row = value(2, 2, dtype=DType.BOOL), value(3, 6)
    named = {"self": X, "indices": (mask,), "values": row, "accumulate": False}
    call = normalize("aten::index_put", named, kind(2, 6))
    view = OpCall("aten::view", {"self": mask, "size": (2, 1)})
    assert call.named["condition"] == MadeArgument(view, kind(2, 1, dtype=DType.BOOL))


def test_a_boolean_index_is_refused():
    with pytest.raises(Unsupported, match="a boolean index picks"):
        refuse_masks("aten::index.Tensor", {"self": X, "indices": (None, MASK)})
    refuse_masks("aten::index.Tensor", {"self": X, "indices": (None, Y)})


def test_a_norm_gives_only_its_first_result():
    named = dict.fromkeys(("input", "weight", "bias", "running_mean", "running_var"), X)
    call = normalize(
        "aten::_native_batch_norm_legit_no_training", {**named, "eps": 1e-5}, X.type
    )
    assert (call.op, call.results) == ("aten::batch_norm", 1)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (OpCall("aten::neg", {"self": 2}), "self must be Tensor, not 2"),
        (OpCall("aten::cat", {"tensors": X, "dim": 0}), "tensors must be a list"),
        (
            OpCall("aten::cat", {"tensors": (X, None), "dim": 0}),
            "tensors must be Tensor, not None",
        ),
        (
            OpCall("aten::mul.Scalar", {"self": X, "other": Y}),
            "other must be Scalar, not %1",
        ),
    ],
)
def test_an_argument_of_another_kind_is_refused(call, reason):
    with pytest.raises(Unsupported, match=reason):
        arguments_of(call)


@pytest.mark.parametrize(
    ("traced", "named", "result", "reason"),
    [
        ("linalg_svd", {"A": X}, kind(2), "no kernel"),
        ("sum", {"self": X, "dtype": DType.FLOAT64}, kind(), "dtype=.* is not supported"),
        ("embedding", {"weight": X, "indices": Y, "max_norm": 1.0}, kind(2, 6, 6), "max_norm=1.0 is not supported"),
        ("scaled_dot_product_attention", {"dropout_p": 0.1}, kind(2), "dropout_p=0.1"),
        ("full", {"size": (2,), "fill_value": X}, kind(2), "a fill value that is a tensor"),
        ("index_put", {"self": X, "indices": (MASK,), "values": value(3, 4), "accumulate": False}, kind(2, 6), "a value for each selected element"),
        ("index_put", {"self": X, "indices": (value(2, 2, dtype=DType.BOOL), Y), "values": value(3), "accumulate": False}, kind(2, 6), "a boolean index beside another"),
        ("masked_scatter", {"self": X}, kind(2, 6), "no kernel"),
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
    assert why_unknown("aten::linalg_svd") == "no kernel"
    assert "slices" in why_unknown("aten::as_strided_scatter")
    assert "aten::zeros_like" not in OPS
